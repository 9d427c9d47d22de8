"""The end of a residual block, two batch normalizations or one, their sum and its ReLU, as one operation: residual.cpp.

y = relu(normalize(x) + other)    or    relu(normalize(x) + normalize(other))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.nets.kernels.native.again import differentiably
from fedloom.nets.kernels.native.applies import alike, last, like
from fedloom.nets.kernels.native.batchnorm import BatchNorm2d, Settings, torch_s
from fedloom.nets.kernels.native.library import run
from fedloom.nets.kernels.native.sequence import flat, hooked, through
from fedloom.nets.layers import residual

FORWARD, BACKWARD = "ppppppppppppppnnffnffn", "pppppppppppppppnnnn"


class Residual(residual.Residual):
    def forward(self, x: Tensor) -> Tensor:
        if hooked(self.total) or hooked(self.main) or hooked(self.shortcut):
            return super().forward(x)
        (made, norm), (other, other_norm) = _unnormalized(self.main, x), _unnormalized(self.shortcut, x)
        if norm is None and other_norm is not None:  # the sides of a sum can change places
            made, norm, other, other_norm = other, other_norm, made, norm
        if norm is not None and _applies(made, norm, other, other_norm):
            return _compute(made, norm, other, other_norm)
        total = _normalized(made, norm) + _normalized(other, other_norm)
        return total.relu_()


def _unnormalized(side: nn.Module, x: Tensor) -> tuple[Tensor, BatchNorm2d | None]:
    """What this side of a block makes of x, before the batch normalization that ends it, and that."""
    modules = list(flat(side)) if isinstance(side, nn.Sequential) else [side]
    norm = modules[-1] if modules else None
    if type(norm) is not BatchNorm2d or hooked(norm):
        return side(x), None
    return through(modules[:-1], x), norm


def _normalized(x: Tensor, norm: BatchNorm2d | None) -> Tensor:
    made: Tensor = x if norm is None else norm(x)
    return made


def _applies(x: Tensor, norm: BatchNorm2d, other: Tensor, other_norm: BatchNorm2d | None) -> bool:
    if not norm.applies(x) or other.shape != x.shape or not alike(x, other):
        return False
    return other_norm is None or other_norm.applies(other)


def _compute(x: Tensor, norm: BatchNorm2d, other: Tensor, other_norm: BatchNorm2d | None) -> Tensor:
    settings = norm.settings(), None if other_norm is None else other_norm.settings()
    learned = (norm.weight, norm.bias), (None, None) if other_norm is None else (other_norm.weight, other_norm.bias)
    y: Tensor = _Residual.apply(last(x), last(other), *learned[0], *learned[1], *settings)  # type: ignore[no-untyped-call]
    return y


class _Residual(torch.autograd.Function):
    """Takes maps that are stored channels last."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        other: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        other_weight: Tensor | None,
        other_bias: Tensor | None,
        settings: Settings,
        other_settings: Settings | None,
    ) -> Tensor:
        channels, both = x.shape[1], other_settings is not None
        second = other_settings or settings
        y, stats, sums = like(x), x.new_empty(2 * channels), torch.empty(2 * channels, dtype=torch.float64)
        other_stats = torch.empty_like(stats) if both else None
        sides = (x, weight, bias, *settings.running, other, other_weight, other_bias, *second.running)
        rest = settings.momentum, settings.eps, settings.training, second.momentum, second.eps, second.training
        tensors = (*sides, stats, other_stats, sums, y)
        run("residual_forward", FORWARD, tensors, x.numel() // channels, channels, *rest)
        ctx.save_for_backward(x, other, weight, bias, other_weight, other_bias, stats, other_stats, y)
        ctx.settings = settings, other_settings
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, stats, other_stats, y = ctx.saved_tensors
        x, other, weight, bias, other_weight, other_bias = inputs
        (settings, other_settings), needed = ctx.settings, ctx.needs_input_grad[:6]
        if torch.is_grad_enabled():

            def function(x: Tensor, other: Tensor, *learned: Tensor | None) -> Tensor:
                one = torch_s(settings, False, stats)(x, *learned[:2])
                if other_settings is not None:
                    other = torch_s(other_settings, False, other_stats)(other, *learned[2:])
                return F.relu(one + other)

            return *differentiably(function, inputs, needed, gradients[0]), None, None
        channels, both = x.shape[1], other_settings is not None
        # what passes the ReLU is the gradient of the other map, or else becomes that of x in place
        passed = like(x)
        of_x = None if not needed[0] else passed if both else like(x)
        of_other = None if not needed[1] else like(x) if both else passed
        of_norms, sums = x.new_empty(8, channels), torch.empty(3 * channels, dtype=torch.float64)
        tensors = (x, weight, bias, other, other_weight, other_bias, stats, other_stats, y, last(gradients[0]))
        trained = settings.training, (other_settings or settings).training
        run(
            "residual_backward",
            BACKWARD,
            (*tensors, of_x, of_other if both else None, passed, of_norms, sums),
            *(x.numel() // channels, channels, *trained),
        )
        of_learned = (of_norms[0], of_norms[1], of_norms[4], of_norms[5])
        return (
            of_x,
            of_other,
            *(gradient if need else None for gradient, need in zip(of_learned, needed[2:], strict=True)),
            None,
            None,
        )
