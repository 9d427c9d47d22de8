"""Convolutions that normalize: their weight before they use it, or the maps they make.

A convolution is changed in place by giving it a subclass of its own class. So it keeps its place in the net, its
tensors keep their names, whatever its own forward pass does is still done, and both changes can be made in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedloom.errors import FedloomError

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d  # first axis of the weight: what they make
TINY = 1e-30  # below float32's rounding of any variance; keeps the slope of the root finite at zero


@dataclass(frozen=True)
class Standard:
    """How each output channel's weight is standardized: (theta - mean) / deviation over (in, height, width)."""

    ddof: int = 0  # deviation over m (0) or m - 1 (1) values
    eps: float = 1e-10
    outside: bool = False  # eps is added to the deviation, not to the variance

    def __call__(self, theta: Tensor) -> Tensor:
        axes = tuple(range(1, theta.dim()))
        var, mean = torch.var_mean(theta, axes, correction=self.ddof, keepdim=True)
        deviation = torch.sqrt(var + TINY) + self.eps if self.outside else torch.sqrt(var + self.eps)
        return (theta - mean) / deviation


def standardize(conv: Convolution, how: Standard) -> None:
    """Let the convolution use its weight standardized; `weight` in files and messages remains the raw one."""
    if not isinstance(conv._parameters.get("weight"), nn.Parameter):
        raise FedloomError(f"a {type(conv).__name__} has a weight that something else makes; remove that first")
    conv.standard = how  # type: ignore[assignment]
    conv.__class__ = _standardized(type(conv))  # type: ignore[assignment, arg-type]


def follow(conv: _ConvNd, norm: nn.Module) -> None:
    """Let a normalizer follow the convolution, as its child `norm`."""
    if hasattr(conv, "norm"):
        raise FedloomError(f"a {type(conv).__name__} has something called `norm` already; give that another name")
    conv.norm = norm
    conv.__class__ = _followed(type(conv))  # type: ignore[assignment, arg-type]


@cache
def _standardized(base: type[nn.Module]) -> type[nn.Module]:
    def weight(self: Any) -> Tensor:
        standard: Tensor = self.standard(self._parameters["weight"])
        return standard

    return type(f"Standardized{base.__name__}", (base,), {"weight": property(weight), "__module__": __name__})


@cache
def _followed(base: type[nn.Module]) -> type[nn.Module]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.norm(base.forward(self, *args, **kwargs))

    return type(f"Normalized{base.__name__}", (base,), {"forward": forward, "__module__": __name__})
