"""3x3 convolutions by Winograd's F(2x2, 3x3), alone or with the pooling and ReLU that follow: winograd.cpp.

Four outputs take 16 multiplications per pair of channels instead of 36: one matrix product over channels for each of the
16 numbers of a tile, in all three passes. Tiles of the input serve the forward pass and the weight's gradient. Where all tiles
together are larger than a processor's cache, images are computed in groups, and tiles again in the backward pass.

Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.nets.kernels.native.again import differentiably
from fedloom.nets.kernels.native.applies import address, last
from fedloom.nets.kernels.native.library import kernel

Pair = tuple[int, int]
CACHE = 1 << 21  # bytes of tiles, of inputs and outputs together
FEWEST = 128  # tiles in a group; products with fewer rows are slow


@dataclass(frozen=True)
class Group:
    """Some images of a batch."""

    first: int
    count: int
    tiles: int
    inputs: ctypes.Array[ctypes.c_int64]  # `Maps` of winograd.cpp
    outputs: ctypes.Array[ctypes.c_int64]


@dataclass(frozen=True)
class Plan:
    """One shape of convolution."""

    made: Pair  # the map, before pooling
    tiles: Pair  # of an image
    groups: tuple[Group, ...]
    pooled: bool

    @property
    def size(self) -> Pair:
        return self.tiles if self.pooled else self.made


@lru_cache(maxsize=256)
def planned(shape: tuple[int, ...], out: int, padding: Pair, pooled: bool, width: int) -> Plan:
    """For images of this shape, (B, C, H, W), in numbers of `width` bytes."""
    batch, inputs, high, wide = shape
    made = (high + 2 * padding[0] - 2, wide + 2 * padding[1] - 2)
    down, across = (side // 2 if pooled else (side + 1) // 2 for side in made)
    tiles = down * across
    fitting = CACHE // (16 * width * (inputs + out) * tiles)
    count = min(batch, max(fitting, -(-FEWEST // tiles), 1))
    groups = []
    for first in range(0, batch, count):
        images = min(count, batch - first)
        numbers = ctypes.c_int64 * 8
        seen = numbers(images, high, wide, inputs, *padding, down, across)
        written = numbers(images, *made, out, 0, 0, down, across)
        groups.append(Group(first, images, images * tiles, seen, written))
    return Plan(made, (down, across), tuple(groups), pooled)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, pooled: bool) -> Tensor:
    """(B, C, H, W) -> (B, out, H made, W made), with a stride of one. `pooled`: then max_pool2d(2) and relu."""
    if torch.is_grad_enabled():
        y: Tensor = _Winograd.apply(x, weight, bias, padding, pooled)  # type: ignore[no-untyped-call]
        return y
    return _forward(last(x), weight, bias, _plan(x, weight, padding, pooled), None)[0]


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, pooled: bool) -> Tensor:
        x, plan = last(x), _plan(x, weight, padding, pooled)
        which = x.new_empty(len(x), *plan.size, len(weight)) if pooled else None
        y, seen, taps = _forward(x, weight, bias, plan, which)
        ctx.save_for_backward(x, weight, bias)
        ctx.plan, ctx.padding, ctx.which, ctx.taps = plan, padding, which, taps
        ctx.seen = seen if len(plan.groups) == 1 else None
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        plan: Plan = ctx.plan
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            again = lambda *given: directly(*given, ctx.padding, plan.pooled)  # noqa: E731
            return (*differentiably(again, (x, weight, bias), needed, gradients[0]), None, None)
        g, (out, inputs) = last(gradients[0]), weight.shape[:2]
        of_x = torch.empty_like(x) if needed[0] else None
        of_taps = x.new_empty(16, out, inputs)
        of_bias = x.new_empty(len(plan.groups), out)
        for number, group in enumerate(plan.groups):
            images = slice(group.first, group.first + group.count)
            products = x.new_empty(16, group.tiles, out)
            if plan.pooled:
                run = kernel("winograd_pooled_gradient", "ppppp", x.dtype)
                run(*_at(g[images], ctx.which[images], products, of_bias[number]), group.outputs)
            else:
                run = kernel("winograd_output_gradient", "pppp", x.dtype)
                run(*_at(g[images], products, of_bias[number]), group.outputs)
            if needed[1]:
                seen = ctx.seen if ctx.seen is not None else _tiles(x[images], group)
                if number:
                    of_taps.baddbmm_(products.transpose(1, 2), seen)
                else:
                    torch.bmm(products.transpose(1, 2), seen, out=of_taps)
            if of_x is not None:
                of_seen = torch.bmm(products, ctx.taps)
                kernel("winograd_input_gradient", "ppp", x.dtype)(*_at(of_seen, of_x[images]), group.inputs)
        of_weight = None
        if needed[1]:
            of_weight = x.new_empty(out, 3, 3, inputs)
            kernel("winograd_kernels_gradient", "ppnn", x.dtype)(*_at(of_taps, of_weight), out, inputs)
            of_weight = of_weight.permute(0, 3, 1, 2)  # as weights are stored
        return of_x, of_weight, of_bias.sum(0) if needed[2] else None, None, None


def directly(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, pooled: bool) -> Tensor:
    """The same by torch."""
    y = F.conv2d(x, weight, bias, 1, padding)
    return F.max_pool2d(y, 2).relu() if pooled else y


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan, which: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, tiles of the last group's inputs, and those of kernels."""
    out, inputs = weight.shape[:2]
    taps = x.new_empty(16, out, inputs)
    kernel("winograd_kernels", "ppnn", x.dtype)(*_at(weight.permute(0, 2, 3, 1).contiguous(), taps), out, inputs)
    y = x.new_empty(len(x), *plan.size, out)
    for group in plan.groups:
        images = slice(group.first, group.first + group.count)
        seen = _tiles(x[images], group)
        products = torch.bmm(seen, taps.transpose(1, 2))
        if plan.pooled:
            run = kernel("winograd_pooled", "ppppp", x.dtype)
            run(*_at(products, bias, y[images], None if which is None else which[images]), group.outputs)
        else:
            kernel("winograd_output", "pppp", x.dtype)(*_at(products, bias, y[images]), group.outputs)
    return y.permute(0, 3, 1, 2), seen, taps


def _tiles(x: Tensor, group: Group) -> Tensor:
    seen = x.new_empty(16, group.tiles, x.shape[1])
    kernel("winograd_input", "ppp", x.dtype)(*_at(x, seen), group.inputs)
    return seen


def _plan(x: Tensor, weight: Tensor, padding: Pair, pooled: bool) -> Plan:
    return planned(tuple(x.shape), len(weight), padding, pooled, x.element_size())


def _at(*tensors: Tensor | None) -> list[int | None]:
    return [address(tensor) for tensor in tensors]
