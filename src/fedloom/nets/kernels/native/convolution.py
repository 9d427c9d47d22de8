"""A compiled convolution as one operation of autograd, alone or with the pooling and ReLU that follow.

Several ways compute it: winograd.py, spectral.py, stem.py, im2col.py. A way has two functions, on maps that are channels last
and kernels stored as (out, high, wide, in).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.nets.kernels.native.again import differentiably
from fedloom.nets.kernels.native.applies import last

Pair = tuple[int, int]


class Geometry(NamedTuple):
    stride: Pair
    padding: Pair


class Result(NamedTuple):
    """What a forward pass makes, and what it keeps for the backward pass."""

    y: Tensor  # (B, out, H made, W made), channels last
    which: Tensor | None  # where pooling took each number from
    seen: Tensor | None = None  # what else the way computed from the images


class Gradients(NamedTuple):
    of_x: Tensor | None  # (B, C, H, W)
    of_weight: Tensor | None  # (out, high, wide, in)
    of_bias: Tensor | None


class Way(Protocol):
    """A module with these two functions."""

    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, pooled: bool, trained: bool, /
    ) -> Result: ...

    def backward(
        self, x: Tensor, weight: Tensor, g: Tensor, kept: Result, geometry: Geometry, needed: tuple[bool, bool, bool], /
    ) -> Gradients: ...


def convolve(way: Way, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, pooled: bool) -> Tensor:
    """(B, C, H, W) -> (B, out, H made, W made). `pooled`: then max_pool2d(2) and relu."""
    if torch.is_grad_enabled():
        y: Tensor = _Convolution.apply(last(x), weight, bias, way, geometry, pooled)  # type: ignore[no-untyped-call]
        return y
    return way.forward(last(x), _stored(weight), bias, geometry, pooled, False).y


def directly(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, pooled: bool) -> Tensor:
    """The same by torch."""
    y = F.conv2d(x, weight, bias, *geometry)
    return F.max_pool2d(y, 2).relu() if pooled else y


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, way: Way, geometry: Geometry, pooled: bool
    ) -> Tensor:
        made = way.forward(x, _stored(weight), bias, geometry, pooled, True)
        ctx.save_for_backward(x, weight, bias)
        ctx.kept = made._replace(y=made.y.new_empty(0))
        ctx.way, ctx.geometry, ctx.pooled = way, geometry, pooled
        return made.y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():

            def again(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
                return directly(x, weight, bias, ctx.geometry, ctx.pooled)

            return (*differentiably(again, (x, weight, bias), needed, gradients[0]), None, None, None)
        made = ctx.way.backward(x, _stored(weight), last(gradients[0]), ctx.kept, ctx.geometry, needed)
        of_weight = None if made.of_weight is None else made.of_weight.permute(0, 3, 1, 2)
        return made.of_x, of_weight, made.of_bias if needed[2] else None, None, None, None


def _stored(weight: Tensor) -> Tensor:
    """(out, high, wide, in), without a copy where weights are channels last."""
    return weight.permute(0, 2, 3, 1).contiguous()
