"""A depthwise 3x3 convolution between two batch normalizations with ReLU, as in MobileNet, as one operation: depthwise.cpp.

    y = convolve(relu(normalize(x)), weight)
    z = relu(normalize(y))

x and y are kept for the backward pass; what lies between is computed again, in a core's cache.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.nets.kernels.native.again import differentiably
from fedloom.nets.kernels.native.applies import alike, last, like
from fedloom.nets.kernels.native.batchnorm import BatchNorm2d, Settings, torch_s
from fedloom.nets.kernels.native.depthwise import made_sizes, serves, workspace
from fedloom.nets.kernels.native.library import run

FORWARD, BACKWARD = "pppppppppppppp" + "nnnnnnn" + "ffffn", "ppppppppppppp" + "nnnnnnn" + "n"
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


def block(x: Tensor, before: BatchNorm2d, conv: nn.Conv2d, after: BatchNorm2d) -> Tensor | None:
    """None where the kernel does not apply."""
    weight, stride = conv.weight, conv.stride[0]
    made = made_sizes(x, stride) if x.dim() == 4 else (0, 0)
    if not (before.applies(x) and alike(x, weight) and after.applies(x)) or len(x) * made[0] * made[1] == 1:
        return None
    first, second = before.settings(), after.settings()
    z: Tensor = _Block.apply(  # type: ignore[no-untyped-call]
        last(x), before.weight, before.bias, weight.contiguous(), after.weight, after.bias, first, second, stride
    )
    return z


class _Block(torch.autograd.Function):
    """Takes maps that are stored channels last, and a weight stored channel by channel."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight1: Tensor | None,
        bias1: Tensor | None,
        weight: Tensor,
        weight2: Tensor | None,
        bias2: Tensor | None,
        first: Settings,
        second: Settings,
        stride: int,
    ) -> Tensor:
        made = made_sizes(x, stride)
        y = torch.empty((*x.shape[:2], *made), dtype=x.dtype, memory_format=torch.channels_last)
        z, stats = like(y), x.new_empty(4 * x.shape[1])
        norms = (weight1, bias1, *first.running, weight, weight2, bias2, *second.running)
        rates = first.momentum, first.eps, second.momentum, second.eps
        tensors = (x, *norms, y, z, stats, _memory(x, made))
        run("block_forward", FORWARD, tensors, *x.shape, *made, stride, *rates, first.training)
        ctx.save_for_backward(x, weight1, bias1, weight, weight2, bias2, y, stats)
        ctx.settings, ctx.stride = (first, second), stride
        return z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, y, stats = ctx.saved_tensors
        x, weight1, bias1, weight, weight2, bias2 = inputs
        needed = ctx.needs_input_grad[:6]
        if torch.is_grad_enabled():
            return *differentiably(_torch_s(ctx, stats), inputs, needed, gradients[0]), None, None, None
        g, channels = last(gradients[0]), x.shape[1]
        of_x, of_weight, of_norms = like(x), torch.empty_like(weight), x.new_empty(4, channels)
        tensors = (
            x,
            y,
            g,
            weight1,
            bias1,
            weight,
            weight2,
            bias2,
            stats,
            of_x,
            of_weight,
            of_norms,
            _memory(x, g.shape[2:]),
        )
        sizes = (*x.shape, *g.shape[2:], ctx.stride)
        run("block_backward", BACKWARD, tensors, *sizes, ctx.settings[0].training)
        every = (of_x, of_norms[0], of_norms[1], of_weight, of_norms[2], of_norms[3])
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
        x: Tensor, w1: Tensor | None, b1: Tensor | None, w: Tensor, w2: Tensor | None, b2: Tensor | None
    ) -> Tensor:
        y = F.conv2d(torch_s(first, True, before)(x, w1, b1), w, None, stride, 1, 1, len(w))
        return torch_s(second, True, after)(y, w2, b2)

    return function
