"""Convolutions with any kernel and stride as products of matrices: im2col.cpp.

What is under one tap of the kernel at some of its places is a matrix, (places, inputs), the weights of that tap another, (out,
inputs). The direct sum, in the order of taps; the unfolded input is never in memory as a whole.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from fedloom.nets.kernels.native.applies import maps
from fedloom.nets.kernels.native.convolution import Geometry, Gradients, Pair, Result
from fedloom.nets.kernels.native.gradients import gradient_like
from fedloom.nets.kernels.native.library import Numbers, run

PLACES = 64  # with fewer, a product is over before weights are in its order


def pays(batch: int, size: Pair) -> bool:
    """A fixed rule on shapes: that of what is made."""
    return batch * size[0] * size[1] >= PLACES


def made(images: tuple[int, ...], taps: Pair, geometry: Geometry) -> Pair:
    """The size of the result."""
    high, wide = (
        (images[axis + 2] + 2 * geometry.padding[axis] - taps[axis]) // geometry.stride[axis] + 1 for axis in (0, 1)
    )
    return high, wide


@lru_cache(maxsize=256)
def shapes(images: tuple[int, ...], out: int, taps: Pair, geometry: Geometry) -> tuple[Pair, Numbers]:
    """The size of the result, and what the kernels take."""
    batch, inputs, high, wide = images
    size = made(images, taps, geometry)
    numbers = (batch, high, wide, inputs, out, *taps, *geometry.stride, *geometry.padding, *size)
    return size, (ctypes.c_int64 * len(numbers))(*numbers)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, pooled: bool, trained: bool) -> Result:
    assert not pooled
    size, numbers = shapes(tuple(x.shape), len(weight), (weight.shape[1], weight.shape[2]), geometry)
    y = maps(x, len(weight), size)
    run("im2col_forward", "ppppp", (x, weight, bias, y), numbers)
    return Result(y, None)


def backward(
    x: Tensor, weight: Tensor, g: Tensor, kept: Result, geometry: Geometry, needed: tuple[bool, bool, bool]
) -> Gradients:
    _, numbers = shapes(tuple(x.shape), len(weight), (weight.shape[1], weight.shape[2]), geometry)
    of_x = torch.empty_like(x) if needed[0] else None
    of_weight = gradient_like(weight) if needed[1] else None
    of_bias = x.new_empty(len(weight)) if needed[2] else None
    if needed[0]:
        run("im2col_input", "pppp", (weight, g, of_x), numbers)
    if needed[1]:
        run("im2col_weight", "pppp", (x, g, of_weight), numbers)
    if needed[2]:
        run("im2col_bias", "ppp", (g, of_bias), numbers)
    return Gradients(of_x, of_weight, of_bias)
