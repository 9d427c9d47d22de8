"""First convolutions, of images with few channels, alone or with the pooling and ReLU that follow: stem.cpp.

There is no gradient of the images: where one may be wanted, torch computes all (convolve.py).
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


@lru_cache(maxsize=256)
def shapes(images: tuple[int, ...], out: int, taps: Pair, padding: Pair, pooled: bool) -> tuple[Pair, Numbers]:
    """The size of the result, and what the kernels take."""
    batch, inputs, high, wide = images
    made = high + 2 * padding[0] - taps[0] + 1, wide + 2 * padding[1] - taps[1] + 1
    down, across = (side // 2 if pooled else (side + 1) // 2 for side in made)
    numbers = (batch, high, wide, inputs, out, *padding, *taps, *made, down, across)
    size = (down, across) if pooled else made
    return size, (ctypes.c_int64 * len(numbers))(*numbers)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, pooled: bool, trained: bool) -> Result:
    size, numbers = shapes(tuple(x.shape), len(weight), (weight.shape[1], weight.shape[2]), geometry.padding, pooled)
    y = maps(x, len(weight), size)
    which = torch.empty_like(y) if pooled and trained else None
    run("stem_forward", "ppppppn", (x, weight, bias, y, which), numbers, pooled)
    return Result(y, which)


def backward(
    x: Tensor, weight: Tensor, g: Tensor, kept: Result, geometry: Geometry, needed: tuple[bool, bool, bool]
) -> Gradients:
    assert not needed[0]
    pooled = kept.which is not None
    _, numbers = shapes(tuple(x.shape), len(weight), (weight.shape[1], weight.shape[2]), geometry.padding, pooled)
    of_weight, of_bias = gradient_like(weight), x.new_empty(len(weight)) if needed[2] else None
    run("stem_backward", "ppppppn", (x, g, kept.which, of_weight, of_bias), numbers, pooled)
    return Gradients(None, of_weight, of_bias)
