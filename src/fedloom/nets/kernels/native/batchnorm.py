"""Batch normalization, alone or with the ReLU that follows it, as one operation: batchnorm.cpp.

y = relu((x - mean) / deviation * weight + bias)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.nets.kernels.native.again import differentiably
from fedloom.nets.kernels.native.applies import alike, last, like, plain
from fedloom.nets.kernels.native.library import run

FORWARD, BACKWARD = "ppppppppnnffnn", "ppppppppnnnn"


class Settings(NamedTuple):
    """All of a batch normalization but its weight and bias."""

    running: tuple[Tensor | None, Tensor | None]  # averages that are used, or that move
    momentum: float
    eps: float
    training: bool  # by statistics of the batch


class BatchNorm2d(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return self.normalize(input, relu=False)

    def normalize(self, x: Tensor, relu: bool) -> Tensor:
        """`relu`: with the ReLU that follows."""
        if not self.applies(x):
            made = super().forward(x)
            return F.relu(made) if relu else made
        y: Tensor = _BatchNorm.apply(last(x), self.weight, self.bias, self.settings(), relu)  # type: ignore[no-untyped-call]
        return y

    @property
    def by_batch(self) -> bool:
        return self.training or self.running_mean is None or self.running_var is None

    def settings(self) -> Settings:
        used = self.track_running_stats or not self.by_batch if self.training else not self.by_batch
        running = (self.running_mean, self.running_var) if used else (None, None)
        return Settings(running, 0.0 if self.momentum is None else self.momentum, self.eps, self.by_batch)

    def applies(self, x: Tensor) -> bool:
        return plain(x) and self.admits(x, tuple(x.shape))

    def admits(self, x: Tensor, shape: tuple[int, ...]) -> bool:
        """Whether a kernel can normalize maps of this shape with numbers as those of x."""
        if shape[1] != self.num_features or (self.by_batch and math.prod(shape) == shape[1]):
            return False
        return alike(x, self.weight, self.bias, self.running_mean, self.running_var)


class _BatchNorm(torch.autograd.Function):
    """Takes maps that are stored channels last: what is saved must be what came in, to be differentiated again."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, settings: Settings, relu: bool
    ) -> Tensor:
        channels = x.shape[1]
        y, stats, sums = like(x), x.new_empty(2 * channels), torch.empty(2 * channels, dtype=torch.float64)
        tensors = (x, weight, bias, *settings.running, stats, sums, y)
        rest = settings.momentum, settings.eps, settings.training, relu
        run("batchnorm_forward", FORWARD, tensors, x.numel() // channels, channels, *rest)
        ctx.save_for_backward(x, weight, bias, stats)
        ctx.settings, ctx.relu = settings, relu
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, stats = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            function = torch_s(ctx.settings, ctx.relu, stats)
            return *differentiably(function, (x, weight, bias), needed, gradients[0]), None, None
        g, channels = last(gradients[0]), x.shape[1]
        of_x = like(x) if needed[0] else None
        of_norm, sums = x.new_empty(4, channels), torch.empty(2 * channels, dtype=torch.float64)
        tensors = (x, g, weight, bias, stats, of_x, of_norm, sums)
        rest = ctx.settings.training, ctx.relu
        run("batchnorm_backward", BACKWARD, tensors, x.numel() // channels, channels, *rest)
        return of_x, of_norm[0] if needed[1] else None, of_norm[1] if needed[2] else None, None, None


def torch_s(settings: Settings, relu: bool, stats: Tensor) -> Callable[..., Tensor]:
    """The same operation by torch. `stats`: mean and 1 / deviation, used in evaluation."""

    def function(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if settings.training:
            y = F.batch_norm(x, None, None, weight, bias, True, 0.0, settings.eps)
        else:
            mean, inverse = stats.view(2, -1, 1, 1)
            y = (x - mean) * inverse
            y = y if weight is None else y * weight.view(-1, 1, 1)
            y = y if bias is None else y + bias.view(-1, 1, 1)
        return F.relu(y) if relu else y

    return function
