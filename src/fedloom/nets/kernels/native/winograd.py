"""3x3 convolutions by Winograd's F(2x2, 3x3), alone or with the pooling and ReLU that follow: winograd.cpp.

Four outputs take 16 multiplications per pair of channels instead of 36, in all three passes.

Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from fedloom.nets.kernels.native.convolution import Gradients, Pair, Result
from fedloom.nets.kernels.native.library import Numbers, run


@lru_cache(maxsize=256)
def shapes(images: tuple[int, ...], out: int, padding: Pair, pooled: bool) -> tuple[tuple[int, int, int, int], Numbers]:
    """Of the result, channels last, and what the kernels take; from (B, C, H, W)."""
    batch, inputs, high, wide = images
    made = (high + 2 * padding[0] - 2, wide + 2 * padding[1] - 2)
    down, across = (side // 2 if pooled else (side + 1) // 2 for side in made)
    numbers = (batch, high, wide, inputs, out, *padding, *made, down, across)
    size = (down, across) if pooled else made
    return (batch, *size, out), (ctypes.c_int64 * len(numbers))(*numbers)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, pooled: bool, trained: bool) -> Result:
    size, shape = shapes(tuple(x.shape), len(weight), padding, pooled)
    y = x.new_empty(size)
    which = torch.empty_like(y) if pooled and trained else None
    run("winograd_forward", "ppppppn", (x, weight, bias, y, which), shape, pooled)
    return Result(y, which)


def backward(x: Tensor, weight: Tensor, g: Tensor, kept: Result, padding: Pair, needed: tuple[bool, bool]) -> Gradients:
    of_x = torch.empty_like(x) if needed[0] else None
    of_weight = torch.empty_like(weight) if needed[1] else None
    of_bias = x.new_empty(len(weight))
    _, shape = shapes(tuple(x.shape), len(weight), padding, kept.which is not None)
    run("winograd_backward", "pppppppp", (x, weight, g, kept.which, of_x, of_weight, of_bias), shape)
    return Gradients(of_x, of_weight, of_bias)
