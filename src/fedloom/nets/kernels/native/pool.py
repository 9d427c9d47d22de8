"""The maximum of windows of 2x2 pixels and the ReLU behind it as one operation: pool.cpp."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.nets.kernels.native.again import differentiably
from fedloom.nets.kernels.native.applies import LAST, last, like, plain
from fedloom.nets.kernels.native.library import run

SIGNATURE = "pppnnnn"


def halves(pool: nn.Module | None) -> bool:
    """Whether this is max_pool2d(2)."""
    if type(pool) is not nn.MaxPool2d or pool.ceil_mode or pool.return_indices:
        return False
    sides = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    return all(side in (number, (number, number)) for side, number in zip(sides, (2, 2, 0, 1), strict=True))


def pools(x: Tensor) -> bool:
    """Whether the kernel applies."""
    return plain(x) and min(x.shape[2:]) >= 2 and x.is_contiguous(memory_format=LAST)


def pool_relu(x: Tensor) -> Tensor:
    """relu(max_pool2d(x, 2))."""
    if torch.is_grad_enabled():
        y: Tensor = _PoolReLU.apply(last(x))  # type: ignore[no-untyped-call]
        return y
    return _forward(last(x), False)[0]


class _PoolReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y, ctx.which = _forward(x, True)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor | None:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiably(lambda x: F.max_pool2d(x, 2).relu(), (x,), (True,), gradients[0])[0]
        g, of_x = last(gradients[0]), like(x)
        run("pool_backward", SIGNATURE, (g, ctx.which, of_x), *_sizes(x))
        return of_x


def _forward(x: Tensor, trained: bool) -> tuple[Tensor, Tensor | None]:
    batch, channels, high, wide = x.shape
    y = x.new_empty(batch, high // 2, wide // 2, channels)
    which = torch.empty_like(y) if trained else None
    run("pool_forward", SIGNATURE, (x, y, which), *_sizes(x))
    return y.permute(0, 3, 1, 2), which


def _sizes(x: Tensor) -> tuple[int, int, int, int]:
    batch, channels, high, wide = x.shape
    return batch, high, wide, channels
