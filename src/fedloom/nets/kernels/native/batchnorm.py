"""Batch normalization, alone or with the ReLU that follows it, as one operation: batchnorm.cpp.

y = relu((x - mean) / deviation * weight + bias)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.nets.kernels.native.again import differentiably
from fedloom.nets.kernels.native.applies import last, like, plain
from fedloom.nets.kernels.native.library import kernel

FORWARD, BACKWARD = "ppppppppnnffnn", "ppppppppnnnn"


class BatchNorm2d(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return self.normalize(input, relu=False)

    def normalize(self, x: Tensor, relu: bool) -> Tensor:
        """`relu`: with the ReLU that follows."""
        by_batch = self.training or self.running_mean is None or self.running_var is None
        if not self._applies(x, by_batch):
            made = super().forward(x)
            return F.relu(made) if relu else made
        kept = self.training and self.track_running_stats
        running = (self.running_mean, self.running_var) if kept or not by_batch else (None, None)
        rate = 0.0 if self.momentum is None else self.momentum
        y: Tensor = _BatchNorm.apply(last(x), self.weight, self.bias, *running, rate, self.eps, by_batch, relu)  # type: ignore[no-untyped-call]
        return y

    def _applies(self, x: Tensor, by_batch: bool) -> bool:
        if not plain(x) or x.shape[1] != self.num_features or (by_batch and x.numel() == x.shape[1]):
            return False
        return all(tensor is None or tensor.dtype == x.dtype for tensor in (self.weight, self.running_mean))


class _BatchNorm(torch.autograd.Function):
    """Takes maps that are stored channels last: what is saved must be what came in, to be differentiated again."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
        training: bool,
        relu: bool,
    ) -> Tensor:
        channels = x.shape[1]
        y, stats = like(x), x.new_empty(2 * channels)
        workspace = torch.empty(2 * channels, dtype=torch.float64)
        tensors = (x, weight, bias, running_mean, running_var, stats, workspace, y)
        run = kernel("batchnorm_forward", FORWARD, x.dtype)
        rows = x.numel() // channels
        run(*map(_address, tensors), rows, channels, momentum, eps, training, relu)
        ctx.save_for_backward(x, weight, bias, stats)
        ctx.eps, ctx.training, ctx.relu = eps, training, relu
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, stats = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            return (*differentiably(_torch_s(ctx, stats), (x, weight, bias), needed, gradients[0]), *[None] * 6)
        g, channels = last(gradients[0]), x.shape[1]
        of_x = like(x) if needed[0] else None
        of_weight, of_bias = x.new_empty(2, channels)
        run = kernel("batchnorm_backward", BACKWARD, x.dtype)
        rows = x.numel() // channels
        tensors = (x, g, weight, bias, stats, of_x, of_weight, of_bias)
        run(*map(_address, tensors), rows, channels, ctx.training, ctx.relu)
        return of_x, of_weight if needed[1] else None, of_bias if needed[2] else None, *[None] * 6


def _torch_s(ctx: Any, stats: Tensor) -> Any:
    """The same operation by torch."""

    def function(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if ctx.training:
            y = F.batch_norm(x, None, None, weight, bias, True, 0.0, ctx.eps)
        else:
            mean, inverse = stats.view(2, -1, 1, 1)
            y = (x - mean) * inverse
            y = y if weight is None else y * weight.view(-1, 1, 1)
            y = y if bias is None else y + bias.view(-1, 1, 1)
        return F.relu(y) if ctx.relu else y

    return function


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
