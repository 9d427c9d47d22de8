"""Depthwise 3x3 convolutions: depthwise.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.nets.kernels.native.again import differentiably
from fedloom.nets.kernels.native.applies import alike, last, like, maps
from fedloom.nets.kernels.native.gradients import gradient_like
from fedloom.nets.kernels.native.library import run

Pair = tuple[int, int]
FORWARD, BACKWARD = "pppppnnnnnnn", "ppppppnnnnnnn"
STRIDES = ((1, 1), (2, 2))
LINE = 64  # numbers: more than a vector, and than the gap before a piece of workspace


def serves(conv: nn.Conv2d) -> bool:
    shape = (conv.kernel_size, conv.padding) == ((3, 3), (1, 1))
    return shape and conv.groups == conv.in_channels == conv.out_channels > 1 and conv.stride in STRIDES


def applies(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, groups: int) -> bool:
    if not groups == x.shape[1] == len(weight) > 1 or not alike(x, weight, bias):
        return False
    return weight.shape[2:] == (3, 3) and padding == (1, 1) and stride in STRIDES


def made_sizes(size: Sequence[int], stride: int) -> Pair:
    return (size[0] - 1) // stride + 1, (size[1] - 1) // stride + 1


def workspace(channels: int, numbers: int = 0) -> Tensor:
    """Memory for weights in vectors, sums in double precision, and this many numbers more."""
    return torch.empty(9 * (channels + LINE) + 13 * channels + 8 * LINE + numbers, dtype=torch.float64)


def depthwise(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    y: Tensor = _Depthwise.apply(last(x), weight.contiguous(), bias, stride)  # type: ignore[no-untyped-call]
    return y


class _Depthwise(torch.autograd.Function):
    """Takes maps that are stored channels last, and a weight stored channel by channel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
        channels = x.shape[1]
        made = made_sizes(x.shape[2:], stride)
        y = maps(x, channels, made)
        run("depthwise_forward", FORWARD, (x, weight, bias, y, workspace(channels)), *x.shape, *made, stride)
        ctx.save_for_backward(x, weight, bias)
        ctx.stride = stride
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        needed, stride = ctx.needs_input_grad[:3], ctx.stride
        if torch.is_grad_enabled():

            def function(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
                return F.conv2d(x, weight, bias, stride, 1, 1, len(weight))

            return (*differentiably(function, (x, weight, bias), needed, gradients[0]), None)
        g = last(gradients[0])
        of_x = like(x) if needed[0] else None
        of_weight = gradient_like(weight) if needed[1] else None
        of_bias = g.sum((0, 2, 3)) if needed[2] else None
        tensors = (x, g, weight, of_x, of_weight, workspace(x.shape[1]))
        run("depthwise_backward", BACKWARD, tensors, *x.shape, *g.shape[2:], stride)
        return of_x, of_weight, of_bias, None
