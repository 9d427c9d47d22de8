"""Means and variances of maps, from which normalizers build all of theirs with small tensors.

Every statistic of batch, group, layer and instance normalization follows from mean and variance over the pixels of
each map, so a normalizer that mixes several of them passes twice over the maps to measure and once to scale.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rows_of(x: Tensor) -> tuple[Tensor, int]:
    """Maps (B, C, H, W) as a view with all pixels on one axis, and which axis that is."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(0, 2, 3, 1).flatten(1, 2), 1  # (B, HW, C)
    return x.flatten(2), 2  # (B, C, HW)


class _Moments(torch.autograd.Function):
    """One pass back over the maps, where autograd's own would make five."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:  # (B, C, ...) -> (B, C), (B, C)
        rows, axis = rows_of(x)
        mean = rows.mean(axis)
        var = (rows - mean.unsqueeze(axis)).square_().mean(axis)
        ctx.save_for_backward(x, mean)
        return mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, mean = ctx.saved_tensors
        pixels = x[0, 0].numel()
        slope = grads[1] * (2 / pixels)
        return scaled(x, slope, grads[0] / pixels - slope * mean)


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over the pixels of each map, (B, C) each. A vector of features is maps of one pixel."""
    if x.dim() == 2:
        return x, torch.zeros_like(x)
    mean, var = _Moments.apply(x)  # type: ignore[no-untyped-call]
    return mean, var


def scaled(x: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
    """slope * x + offset, both (B, C) or (C,), in one pass."""
    shape = (-1, x.shape[1], *(1,) * (x.dim() - 2))
    return torch.addcmul(offset.view(shape), x, slope.view(shape))


def full_precision(x: Tensor) -> Tensor:
    """Statistics are never taken of half-precision sums."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
