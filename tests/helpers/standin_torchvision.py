"""A stand-in for torchvision, for tests alone: timm imports torchvision, which has no build for every torch.

Its modules hold empty classes under every name. timm's models need none of them: its data pipeline and a frozen normalizer do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch import nn

MODULES = (
    "torchvision",
    *("torchvision.ops", "torchvision.ops.misc", "torchvision.datasets", "torchvision.transforms"),
    "torchvision.transforms.functional",
)


class _AnyMember(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Standin(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyMember(name, (nn.Module,) if "Norm" in name else (), {})


@contextmanager
def standin_torchvision() -> Iterator[None]:
    """timm can be imported inside the block; both are forgotten after it."""
    for name in MODULES:
        module = sys.modules[name] = _Standin(name)
        module.__path__ = []
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("timm", "torchvision")]:
            del sys.modules[name]
