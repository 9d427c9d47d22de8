"""3x3 convolutions by Winograd's F(2x2, 3x3), alone or with the pooling and ReLU that follow: winograd.cpp.

Four outputs take 16 multiplications per pair of channels instead of 36, in all three passes.

Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.nets.kernels.native.again import differentiably
from fedloom.nets.kernels.native.applies import last
from fedloom.nets.kernels.native.library import Numbers, run

Pair = tuple[int, int]
FORWARD, BACKWARD = "ppppppn", "pppppppp"


@lru_cache(maxsize=256)
def shapes(images: tuple[int, ...], out: int, padding: Pair, pooled: bool) -> tuple[tuple[int, int, int, int], Numbers]:
    """Of the result, channels last, and what the kernels take; from (B, C, H, W)."""
    batch, inputs, high, wide = images
    made = (high + 2 * padding[0] - 2, wide + 2 * padding[1] - 2)
    down, across = (side // 2 if pooled else (side + 1) // 2 for side in made)
    numbers = (batch, high, wide, inputs, out, *padding, *made, down, across)
    size = (down, across) if pooled else made
    return (batch, *size, out), (ctypes.c_int64 * len(numbers))(*numbers)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, pooled: bool) -> Tensor:
    """(B, C, H, W) -> (B, out, H made, W made), with a stride of one. `pooled`: then max_pool2d(2) and relu."""
    if torch.is_grad_enabled():
        y: Tensor = _Winograd.apply(last(x), weight, bias, padding, pooled)  # type: ignore[no-untyped-call]
        return y
    return _forward(last(x), _stored(weight), bias, padding, pooled, False)[0]


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, pooled: bool) -> Tensor:
        y, ctx.which = _forward(x, _stored(weight), bias, padding, pooled, True)
        ctx.save_for_backward(x, weight, bias)
        ctx.padding, ctx.pooled = padding, pooled
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():

            def again(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
                return directly(x, weight, bias, ctx.padding, ctx.pooled)

            return (*differentiably(again, (x, weight, bias), needed, gradients[0]), None, None)
        out, inputs = weight.shape[:2]
        of_x = torch.empty_like(x) if needed[0] else None
        of_weight = x.new_empty(out, 3, 3, inputs) if needed[1] else None
        of_bias = x.new_empty(out)
        _, shape = shapes(tuple(x.shape), out, ctx.padding, ctx.pooled)
        tensors = (x, _stored(weight), last(gradients[0]), ctx.which, of_x, of_weight, of_bias)
        run("winograd_backward", BACKWARD, tensors, shape)
        of_weight = None if of_weight is None else of_weight.permute(0, 3, 1, 2)
        return of_x, of_weight, of_bias if needed[2] else None, None, None


def directly(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, pooled: bool) -> Tensor:
    """The same by torch."""
    y = F.conv2d(x, weight, bias, 1, padding)
    return F.max_pool2d(y, 2).relu() if pooled else y


def _forward(
    x: Tensor, stored: Tensor, bias: Tensor | None, padding: Pair, pooled: bool, trained: bool
) -> tuple[Tensor, Tensor | None]:
    """The result and, for training, where pooling took it from."""
    size, shape = shapes(tuple(x.shape), len(stored), padding, pooled)
    y = x.new_empty(size)
    which = torch.empty_like(y) if pooled and trained else None
    run("winograd_forward", FORWARD, (x, stored, bias, y, which), shape, pooled)
    return y.permute(0, 3, 1, 2), which


def _stored(weight: Tensor) -> Tensor:
    """(out, 3, 3, in), without a copy where weights are channels last."""
    return weight.permute(0, 2, 3, 1).contiguous()
