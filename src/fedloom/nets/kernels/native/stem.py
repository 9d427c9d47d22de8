"""First convolutions, of images with few channels, alone or with the pooling and ReLU that follow: stem.cpp.

There is no gradient of the images: where one is wanted, torch computes all.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedloom.nets.kernels.native.again import differentiably
from fedloom.nets.kernels.native.applies import last
from fedloom.nets.kernels.native.library import Numbers, run
from fedloom.nets.kernels.native.winograd import directly

Pair = tuple[int, int]
FORWARD, BACKWARD = "ppppppn", "ppppppn"


@lru_cache(maxsize=256)
def shapes(
    images: tuple[int, ...], out: int, taps: Pair, padding: Pair, pooled: bool
) -> tuple[tuple[int, int, int, int], Numbers]:
    """Of the result, channels last, and what the kernels take."""
    batch, inputs, high, wide = images
    made = high + 2 * padding[0] - taps[0] + 1, wide + 2 * padding[1] - taps[1] + 1
    down, across = (side // 2 if pooled else (side + 1) // 2 for side in made)
    numbers = (batch, high, wide, inputs, out, *padding, *taps, *made, down, across)
    size = (down, across) if pooled else made
    return (batch, *size, out), (ctypes.c_int64 * len(numbers))(*numbers)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, pooled: bool) -> Tensor:
    """(B, C, H, W) -> (B, out, H made, W made), with a stride of one. `pooled`: then max_pool2d(2) and relu."""
    if torch.is_grad_enabled():
        y: Tensor = _Stem.apply(last(x), weight, bias, padding, pooled)  # type: ignore[no-untyped-call]
        return y
    return _forward(last(x), weight, bias, padding, pooled, False)[0]


class _Stem(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, pooled: bool) -> Tensor:
        y, ctx.which = _forward(x, weight, bias, padding, pooled, True)
        ctx.save_for_backward(x, weight, bias)
        ctx.padding, ctx.pooled = padding, pooled
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled() or needed[0]:

            def again(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
                return directly(x, weight, bias, ctx.padding, ctx.pooled)

            return (*differentiably(again, (x, weight, bias), needed, gradients[0]), None, None)
        out, inputs, *taps = weight.shape
        _, numbers = shapes(tuple(x.shape), out, (taps[0], taps[1]), ctx.padding, ctx.pooled)
        of_weight, of_bias = x.new_empty(out, *taps, inputs), x.new_empty(out)
        tensors = (x, last(gradients[0]), ctx.which, of_weight, of_bias)
        run("stem_backward", BACKWARD, tensors, numbers, ctx.pooled)
        return None, of_weight.permute(0, 3, 1, 2) if needed[1] else None, of_bias if needed[2] else None, None, None


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, pooled: bool, trained: bool
) -> tuple[Tensor, Tensor | None]:
    """The result and, for training, where pooling took it from."""
    size, numbers = shapes(tuple(x.shape), len(weight), (weight.shape[2], weight.shape[3]), padding, pooled)
    y = x.new_empty(size)
    which = torch.empty_like(y) if pooled and trained else None
    tensors = (x, weight.permute(0, 2, 3, 1).contiguous(), bias, y, which)
    run("stem_forward", FORWARD, tensors, numbers, pooled)
    return y.permute(0, 3, 1, 2), which
