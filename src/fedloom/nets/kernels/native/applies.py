"""Where compiled kernels apply: plain tensors in a processor's memory, channels last, in float32 or float64."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.nets.kernels.native.library import SUFFIX
from fedloom.nets.kernels.transforms import is_wrapped  # type: ignore[attr-defined]

LAST = torch.channels_last


def plain(x: Tensor) -> bool:
    """Whether these maps have memory that a kernel can read: not under vmap, autocast, tracing or compilation."""
    return (
        type(x) is Tensor
        and x.dim() == 4
        and x.device.type == "cpu"
        and x.dtype in SUFFIX
        and x.layout is torch.strided
        and x.numel() > 0
        and not is_wrapped(x)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    )


def last(x: Tensor) -> Tensor:
    """The maps, channels last; without a copy where they are."""
    return x.contiguous(memory_format=LAST)


def like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=LAST)


def maps(x: Tensor, channels: int, size: tuple[int, int]) -> Tensor:
    """Room for maps made of x; no view of other memory, so that what follows may work in place."""
    return torch.empty((len(x), channels, *size), dtype=x.dtype, memory_format=LAST)


def alike(x: Tensor, *others: Tensor | None) -> bool:
    """Whether a kernel can read these as well as x: memory of their own, and numbers of the same type."""
    return all(tensor is None or (tensor.dtype == x.dtype and not is_wrapped(tensor)) for tensor in others)
