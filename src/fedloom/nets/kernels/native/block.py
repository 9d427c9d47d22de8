"""A depthwise 3x3 convolution between two batch normalizations with ReLU, as in MobileNet, as one operation: block.cpp.

    y = convolve(relu(normalize(x)), weight)
    z = relu(normalize(y))

A 1x1 convolution of z that follows belongs to it. x and y are kept for the backward pass; what lies between, z too, is
computed again, in a core's cache.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.nets.kernels.native.again import differentiably
from fedloom.nets.kernels.native.applies import alike, last, like, maps
from fedloom.nets.kernels.native.batchnorm import BatchNorm2d, Settings, torch_s
from fedloom.nets.kernels.native.depthwise import made_sizes, serves, workspace
from fedloom.nets.kernels.native.library import run

FORWARD, BACKWARD = 15 * "p" + 8 * "n" + "ffffn", 16 * "p" + 8 * "n" + "n"
PIXELS = 32  # as in depthwise.h


def fits(before: nn.Module, conv: nn.Module, after: nn.Module) -> bool:
    """Whether these three, with a ReLU behind either normalization, are such a block."""
    if not (
        type(before) is BatchNorm2d and type(after) is BatchNorm2d and isinstance(conv, nn.Conv2d) and serves(conv)
    ):
        return False
    alone = getattr(conv, "native", False) and type(conv).forward is nn.Conv2d.forward and conv.bias is None
    same = before.num_features == conv.in_channels == after.num_features
    return alone and same and before.by_batch == after.by_batch


def follows(conv: nn.Module) -> bool:
    """Whether this is a 1x1 convolution that can belong to the block before it."""
    if (
        not isinstance(conv, nn.Conv2d)
        or type(conv).forward is not nn.Conv2d.forward
        or not getattr(conv, "native", False)
    ):
        return False
    plainly = (conv.kernel_size, conv.stride, conv.padding, conv.groups) == ((1, 1), (1, 1), (0, 0), 1)
    return plainly and conv.bias is None


def block(
    x: Tensor, before: BatchNorm2d, conv: nn.Conv2d, after: BatchNorm2d, point: nn.Conv2d | None
) -> Tensor | None:
    """None where the kernel does not apply. `point`: the 1x1 convolution that follows, if it belongs to the block."""
    weight, stride = conv.weight, conv.stride[0]
    made = made_sizes(x, stride) if x.dim() == 4 else (0, 0)
    last_weight = None if point is None else point.weight
    if (
        not (before.applies(x) and alike(x, weight, last_weight) and after.applies(x))
        or len(x) * made[0] * made[1] == 1
    ):
        return None
    first, second = before.settings(), after.settings()
    norms = (before.weight, before.bias, weight.contiguous(), after.weight, after.bias)
    stored = None if last_weight is None else last_weight.contiguous(memory_format=torch.channels_last)
    z: Tensor = _Block.apply(last(x), *norms, stored, first, second, stride)  # type: ignore[no-untyped-call]
    return z


class _Block(torch.autograd.Function):
    """Takes maps that are stored channels last, a weight stored channel by channel, and that of a 1x1 convolution."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight1: Tensor | None,
        bias1: Tensor | None,
        weight: Tensor,
        weight2: Tensor | None,
        bias2: Tensor | None,
        point: Tensor | None,
        first: Settings,
        second: Settings,
        stride: int,
    ) -> Tensor:
        size = made_sizes(x, stride)
        out = x.shape[1] if point is None else len(point)
        y, made, stats = maps(x, x.shape[1], size), maps(x, out, size), x.new_empty(4 * x.shape[1])
        norms = (weight1, bias1, *first.running, weight, weight2, bias2, *second.running)
        rates = first.momentum, first.eps, second.momentum, second.eps
        tensors = (x, *norms, point, y, made, stats, _memory(x, size))
        run("block_forward", FORWARD, tensors, *x.shape, *size, stride, out, *rates, first.training)
        ctx.save_for_backward(x, weight1, bias1, weight, weight2, bias2, point, y, stats)
        ctx.settings, ctx.stride = (first, second), stride
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, y, stats = ctx.saved_tensors
        x, *norms, point = inputs
        needed = ctx.needs_input_grad[:7]
        if torch.is_grad_enabled():
            return *differentiably(_torch_s(ctx, stats), inputs, needed, gradients[0]), None, None, None
        g = last(gradients[0])
        of_x, of_weight, of_norms = like(x), torch.empty_like(norms[2]), x.new_empty(4, x.shape[1])
        of_z, of_point = (None, None) if point is None else (like(y), torch.empty_like(point))
        made = (of_x, of_weight, of_norms, of_z, of_point)
        tensors = (x, y, g, *norms, point, stats, *made, _memory(x, g.shape[2:]))
        run(
            "block_backward",
            BACKWARD,
            tensors,
            *x.shape,
            *g.shape[2:],
            ctx.stride,
            g.shape[1],
            ctx.settings[0].training,
        )
        every = (of_x, of_norms[0], of_norms[1], of_weight, of_norms[2], of_norms[3], of_point)
        return *(gradient if need else None for gradient, need in zip(every, needed, strict=True)), None, None, None


def _memory(x: Tensor, made: Any) -> Tensor:
    """Workspace, with room for the maps of a few images before and after the convolution."""
    group = max(PIXELS // (made[0] * made[1]), 1)
    return workspace(x.shape[1], 4 * x.shape[1] + group * x.shape[1] * (x.shape[2] * x.shape[3] + made[0] * made[1]))


def _torch_s(ctx: Any, stats: Tensor) -> Any:
    """The same operation by torch."""
    (first, second), stride = ctx.settings, ctx.stride
    before, after = stats.view(2, 2, -1)

    def function(
        x: Tensor,
        w1: Tensor | None,
        b1: Tensor | None,
        w: Tensor,
        w2: Tensor | None,
        b2: Tensor | None,
        point: Tensor | None,
    ) -> Tensor:
        y = F.conv2d(torch_s(first, True, before)(x, w1, b1), w, None, stride, 1, 1, len(w))
        z = torch_s(second, True, after)(y, w2, b2)
        return z if point is None else F.conv2d(z, point)

    return function
