"""Convolutions with large kernels as products of spectra, alone or with the pooling and ReLU that follow: spectral.cpp.

The idea is that of ../spectra.py, the tables are those of ../transforms.py. A 5x5 kernel over 14x14 pixels takes a
quarter of the direct sum's multiplications, transforms among them.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedloom.nets.kernels.native.applies import maps
from fedloom.nets.kernels.native.convolution import Geometry, Gradients, Pair, Result
from fedloom.nets.kernels.native.gradients import gradient_like
from fedloom.nets.kernels.native.library import Numbers, run
from fedloom.nets.kernels.transforms import Sides, frequencies, made_size, periods_of, planned, work

SHARE = 0.6  # of the direct sum's multiplications; products of spectra are faster up to here
SIDES = 0  # rows and columns are transformed one after the other, however short
APART = 16  # numbers between matrices of spectra, as in spectral.cpp


@lru_cache(maxsize=256)
def pays(batch: int, channels: Pair, sizes: Pair, taps: Pair, padding: Pair, trained: bool) -> bool:
    """A fixed rule on shapes: the multiplications of one pass or of three, those of transforms among them."""
    periods, size = periods_of(sizes, padding), made_size(sizes, taps, padding)
    image, kernel, made = (work(side, periods, SIDES) for side in (sizes, taps, size))
    inputs, out = channels
    maps, kernels = batch * (inputs * image + out * made), inputs * out * kernel
    products = 4 * frequencies(periods, SIDES) * batch * inputs * out
    directly = batch * inputs * out * math.prod(size) * math.prod(taps)
    if trained:
        return 2 * maps + 3 * kernels + 3 * products <= SHARE * 3 * directly
    return maps + kernels + products <= SHARE * directly


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, pooled: bool, trained: bool) -> Result:
    taps, out = (weight.shape[1], weight.shape[2]), len(weight)
    tables = _tables((x.shape[2], x.shape[3]), taps, geometry.padding, x.dtype)
    size, shape, numbers = _shapes(tuple(x.shape), out, taps, geometry.padding)
    y = maps(x, out, (size[0] // 2, size[1] // 2) if pooled else size)
    which = torch.empty_like(y) if pooled and trained else None
    seen = x.new_empty(numbers) if trained else None
    run("spectral_forward", "ppppppppn", (x, weight, bias, tables, y, which, seen), shape, pooled)
    return Result(y, which, seen)


def backward(
    x: Tensor, weight: Tensor, g: Tensor, kept: Result, geometry: Geometry, needed: tuple[bool, bool, bool]
) -> Gradients:
    taps, out = (weight.shape[1], weight.shape[2]), len(weight)
    tables = _tables((x.shape[2], x.shape[3]), taps, geometry.padding, x.dtype)
    _, shape, _ = _shapes(tuple(x.shape), out, taps, geometry.padding)
    of_x = torch.empty_like(x) if needed[0] else None
    of_weight = gradient_like(weight) if needed[1] else None
    of_bias = x.new_empty(out)
    tensors = (kept.seen, weight, g, kept.which, tables, of_x, of_weight, of_bias)
    run("spectral_backward", "ppppppppp", tensors, shape)
    return Gradients(of_x, of_weight, of_bias)


@lru_cache(maxsize=256)
def _shapes(images: tuple[int, ...], out: int, taps: Pair, padding: Pair) -> tuple[Pair, Numbers, int]:
    """Of the result, what the kernels take, and the numbers of the images' spectra with some room between them."""
    batch, inputs, *sides = images
    sizes = (sides[0], sides[1])
    size, (high, wide) = made_size(sizes, taps, padding), periods_of(sizes, padding)
    numbers = (batch, *sizes, inputs, out, *taps, *size, high, wide)
    matrix = (-(-batch * inputs // APART) | 1) * APART
    room = 2 * high * (wide // 2 + 1) * matrix
    return size, (ctypes.c_int64 * len(numbers))(*numbers), room


@lru_cache(maxsize=64)
def _tables(sizes: Pair, taps: Pair, padding: Pair, dtype: torch.dtype) -> Tensor:
    """Of images, kernels and results, one after the other, as spectral.cpp reads them."""
    plan = planned(sizes, taps, padding, dtype, SIDES)
    tables = []
    for sides in (plan.image, plan.kernel, plan.made):
        assert isinstance(sides, Sides)
        high, half = len(sides.down) // 2, len(sides.across) // 2
        cosines, sines = sides.down[:high, ::2], sides.down[high:, ::2]  # of every frequency, for every row
        down = np.concatenate([cosines[: high // 2 + 1], sines[1 : (high + 1) // 2]])
        tables += [sides.across.reshape(2, half, -1).swapaxes(0, 1).ravel(), down.ravel()]
    return torch.from_numpy(np.concatenate(tables))
