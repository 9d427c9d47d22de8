"""Where compiled kernels apply: plain tensors in a processor's memory, channels last, in float32 or float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedloom.nets.kernels.native.library import SUFFIX
from fedloom.nets.kernels.transforms import DTYPES, is_wrapped  # type: ignore[attr-defined]

LAST = torch.channels_last
LARGE = 1 << 15  # numbers; smaller pieces fit anywhere
LINE = 64  # bytes of a cache line, and of a vector


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
    return maps(x, x.shape[1], x.shape[2:])


def maps(x: Tensor, channels: int, size: Sequence[int]) -> Tensor:
    """Room for maps made of x; no view of other memory, so that what follows may work in place.

    torch asks the C library for aligned memory. Of glibc before 2.38 that needs a larger hole than the one that the same maps
    left a step ago, so memory grew from round to round. Large maps ask for plain memory, and begin at a cache line in it.
    """
    shape = (len(x), channels, *size)
    count = math.prod(shape)
    if count < LARGE:
        return torch.empty(shape, dtype=x.dtype, memory_format=LAST)
    room = np.empty(count + LINE // x.itemsize, DTYPES[x.dtype])
    begin = -(room.ctypes.data // x.itemsize) % (LINE // x.itemsize)
    stored = room[begin : begin + count].reshape(shape[0], *shape[2:], channels)
    return torch.from_numpy(stored.transpose(0, 3, 1, 2))


def alike(x: Tensor, *others: Tensor | None) -> bool:
    """Whether a kernel can read these as well as x: memory of their own, and numbers of the same type."""
    return all(tensor is None or (tensor.dtype == x.dtype and not is_wrapped(tensor)) for tensor in others)
