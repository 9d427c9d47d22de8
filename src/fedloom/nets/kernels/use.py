"""Which kernels a net uses: the recipe's `kernels`.

    torch      torch's own
    portable   matrix products and Fourier transforms in torch's operations, chosen by shape (products.py, spectra.py)
    native     compiled kernels (native/) where there are some, else portable

`auto` is decided when a run begins (engine/kernels.py). Until then, and in stored recipes that have it, it is portable.
Modules keep their places and their tensors their names: they are given subclasses of their own classes.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from fedloom.nets.kernels.native.batchnorm import BatchNorm2d
from fedloom.nets.kernels.native.convolve import serves
from fedloom.nets.kernels.native.library import native_reason
from fedloom.nets.kernels.native.residual import Residual
from fedloom.nets.kernels.native.sequence import Sequential
from fedloom.nets.kernels.products import Conv2d
from fedloom.nets.layers import residual

Kernels = Literal["auto", "torch", "portable", "native"]


def served(net: nn.Module) -> int:
    """The number of layers for which there are compiled kernels."""
    return sum(_is_served(module) for module in net.modules())


def lacks_native(net: nn.Module) -> str | None:
    """Why compiled kernels that would serve this net are not available; None if they are, or if none would."""
    return native_reason() if served(net) else None


def use_native(net: nn.Module) -> None:
    """Let a finished net use compiled kernels, which are there."""
    for module in net.modules():
        if isinstance(module, Conv2d):
            module.native = True
        elif type(module) is nn.BatchNorm2d:
            module.__class__ = BatchNorm2d
        elif type(module) is nn.Sequential:
            module.__class__ = Sequential
        elif type(module) is residual.Residual:
            module.__class__ = Residual


def _is_served(module: nn.Module) -> bool:
    return type(module) in (nn.BatchNorm2d, BatchNorm2d) or (isinstance(module, Conv2d) and serves(module))
