"""3x3 convolutions by Winograd's algorithms, alone or with the pooling and ReLU that follow: winograd.cpp.

    F(2x2, 3x3)    four outputs take 16 multiplications per pair of channels instead of 36
    F(4x4, 3x3)    sixteen take 36 instead of 144; rounding errors are three times those of F(2x2, 3x3)
    2x2 maps       four take 9 instead of 36, in a border of one pixel

Errors of torch's direct sum grow with its length, those of F(4x4, 3x3) hardly do: it is used from as many channels, or for
the weight's gradient pixels, on as make its errors no larger than torch's. With AVX-512, torch adds up gradients in shorter
runs.

Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016.
Barabasz, Anderson, Soodhalter and Gregg, "Error analysis and improving the accuracy of Winograd convolution", 2020.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.nets.kernels.native.applies import maps
from fedloom.nets.kernels.native.compiler import vectors
from fedloom.nets.kernels.native.convolution import Geometry, Gradients, Pair, Result
from fedloom.nets.kernels.native.gradients import gradient_like
from fedloom.nets.kernels.native.library import Numbers, run

TWO, FOUR, WHOLE = range(3)  # as in winograd.cpp
# channels, channels and pixels from which on F(4x4, 3x3) is as exact as torch, with AVX-512 and with other instructions
LEAST = {"AVX512": (256, 256, 25600)}
LEAST_ELSEWHERE = (256, 128, 3200)
# of 2x2 pixels, or of 2x2 maps; with fewer, the weight's gradient is less exact than torch's, or slow
TILES, IMAGES = 80, 16


def pays(images: tuple[int, ...], padding: Pair) -> bool:
    """A fixed rule on shapes, (B, C, H, W)."""
    batch, _, high, wide = images
    if _is_whole((high, wide), padding):
        return batch >= IMAGES
    return batch * _tiles((high + 2 * padding[0] - 2, wide + 2 * padding[1] - 2), 2) >= TILES


class Plan(NamedTuple):
    """For one shape of convolution."""

    size: Pair  # of the result
    shape: Numbers  # what the kernels take
    forward: int  # the way of each pass
    input: int
    weight: int


@lru_cache(maxsize=256)
def planned(images: tuple[int, ...], out: int, padding: Pair, pooled: bool) -> Plan:
    """From (B, C, H, W)."""
    batch, inputs, high, wide = images
    made = (high + 2 * padding[0] - 2, wide + 2 * padding[1] - 2)
    numbers = (batch, high, wide, inputs, out, *padding, *made)
    size = (made[0] // 2, made[1] // 2) if pooled else made
    return Plan(size, (ctypes.c_int64 * len(numbers))(*numbers), *ways(images, out, padding, vectors()))


def ways(images: tuple[int, ...], out: int, padding: Pair, instructions: str) -> tuple[int, int, int]:
    """Of the forward pass, the input's and the weight's gradient: a fixed rule on shapes, for a kind of processor."""
    batch, inputs, high, wide = images
    made = (high + 2 * padding[0] - 2, wide + 2 * padding[1] - 2)
    if _is_whole((high, wide), padding):
        return WHOLE, WHOLE, WHOLE

    def way(size: Pair, exact: bool) -> int:
        return FOUR if exact and 36 * _tiles(size, 4) < 16 * _tiles(size, 2) else TWO

    forward, input, weight = LEAST.get(instructions, LEAST_ELSEWHERE)
    pixels = batch * made[0] * made[1]
    return way(made, inputs >= forward), way((high, wide), out >= input), way(made, pixels >= weight)


def _is_whole(size: Pair, padding: Pair) -> bool:
    return size == (2, 2) and padding == (1, 1)


def _tiles(size: Pair, side: int) -> int:
    return -(-size[0] // side) * -(-size[1] // side)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, pooled: bool, trained: bool) -> Result:
    plan = planned(tuple(x.shape), len(weight), geometry.padding, pooled)
    y = maps(x, len(weight), plan.size)
    which = torch.empty_like(y) if pooled and trained else None
    run("winograd_forward", "ppppppnn", (x, weight, bias, y, which), plan.shape, pooled, plan.forward)
    return Result(y, which)


def backward(
    x: Tensor, weight: Tensor, g: Tensor, kept: Result, geometry: Geometry, needed: tuple[bool, bool, bool]
) -> Gradients:
    plan = planned(tuple(x.shape), len(weight), geometry.padding, kept.which is not None)
    of_x = torch.empty_like(x) if needed[0] else None
    of_weight = gradient_like(weight) if needed[1] else None
    of_bias = x.new_empty(len(weight)) if needed[2] else None
    if needed[0]:
        run("winograd_input", "pppppn", (weight, g, kept.which, of_x), plan.shape, plan.input)
    if needed[1]:
        run("winograd_weight", "pppppn", (x, g, kept.which, of_weight), plan.shape, plan.weight)
    if needed[2]:
        run("winograd_bias", "pppp", (g, kept.which, of_bias), plan.shape)
    return Gradients(of_x, of_weight, of_bias)
