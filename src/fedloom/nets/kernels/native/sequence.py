"""A sequence of modules that computes neighbors in one operation where there is a kernel for that.

    batch normalization, ReLU                                                       batchnorm.py
    batch normalization, ReLU, depthwise convolution, batch normalization, ReLU     block.py
    the same and a 1x1 convolution                                                  block.py
    max-pooling, ReLU                                                               pool.py
    convolution, max-pooling, ReLU                                                  convolve.py

Which modules go together is seen in every pass, so a net may be hooked, taken apart and rebuilt as before. A module with
hooks is called by itself, since someone looks at what enters or leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from fedloom.nets.kernels.native.batchnorm import BatchNorm2d
from fedloom.nets.kernels.native.block import block, fits, follows
from fedloom.nets.kernels.native.convolve import convolve_pooled
from fedloom.nets.kernels.native.pool import halves, pool_relu, pools


class Sequential(nn.Sequential):
    def forward(self, input: Any) -> Any:
        modules = list(_flat(self))
        at = 0
        while at < len(modules):
            input, count = _first(modules, at, input)
            at += count
        return input


def _first(modules: list[nn.Module], at: int, x: Any) -> tuple[Any, int]:
    """What the modules from here on make of x, as many as go together, and their number."""
    module = modules[at]
    made: Tensor | None
    if type(module) is BatchNorm2d and _rectified(modules, at):
        if at + 4 < len(modules) and _is_block(modules, at):
            point = modules[at + 5] if at + 5 < len(modules) and follows(modules[at + 5]) else None
            point = None if point is None or _hooked(point) else point
            made = block(x, module, modules[at + 2], modules[at + 3], point)  # type: ignore[arg-type]
            if made is not None:
                return made, 5 if point is None else 6
        return module.normalize(x, relu=True), 2
    if halves(module) and _rectified(modules, at) and pools(x):
        return pool_relu(x), 2
    if isinstance(module, nn.Conv2d) and not _hooked(module) and at + 2 < len(modules) and halves(modules[at + 1]):
        made = convolve_pooled(x, module) if _rectified(modules, at + 1) else None
        if made is not None:
            return made, 3
    return module(x), 1


def _flat(sequence: nn.Sequential) -> Iterator[nn.Module]:
    """Its modules, and in their place those of sequences among them."""
    for module in sequence._modules.values():
        assert module is not None
        if type(module) is Sequential and not _hooked(module):
            yield from _flat(module)
        else:
            yield module


def _rectified(modules: list[nn.Module], at: int) -> bool:
    """Whether a ReLU follows, and nobody looks in between."""
    if at + 1 >= len(modules) or type(modules[at + 1]) is not nn.ReLU:
        return False
    return not _hooked(modules[at]) and not _hooked(modules[at + 1])


def _is_block(modules: list[nn.Module], at: int) -> bool:
    before, _, conv, after, _ = modules[at : at + 5]
    return fits(before, conv, after) and not _hooked(conv) and _rectified(modules, at + 3)


def _hooked(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
