"""A sequence of modules that computes neighbors in one operation where there is a kernel for that.

    batch normalization, ReLU                                                       batchnorm.py
    batch normalization, ReLU, depthwise convolution, batch normalization, ReLU     block.py
    the same and a 1x1 convolution, once or several times                           block.py
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
from fedloom.nets.kernels.native.block import Block, compute, fits, follows, served
from fedloom.nets.kernels.native.convolve import convolve_pooled
from fedloom.nets.kernels.native.pool import halves, pool_relu, pools


class Sequential(nn.Sequential):
    def forward(self, input: Any) -> Any:
        return through(list(flat(self)), input)


def through(modules: list[nn.Module], x: Any) -> Any:
    """What these modules, one behind the other, make of x."""
    at = 0
    while at < len(modules):
        x, count = _first(modules, at, x)
        at += count
    return x


def _first(modules: list[nn.Module], at: int, x: Any) -> tuple[Any, int]:
    """What the modules from here on make of x, as many as go together, and their number."""
    module = modules[at]
    made: Tensor | None
    if type(module) is BatchNorm2d and _rectified(modules, at):
        blocks = list(_blocks(modules, at))
        blocks = blocks[: served(x, blocks)] if blocks else []
        if blocks:
            return compute(x, blocks), sum(5 if block.point is None else 6 for block in blocks)
        return module.normalize(x, relu=True), 2
    if halves(module) and _rectified(modules, at) and pools(x):
        return pool_relu(x), 2
    if isinstance(module, nn.Conv2d) and not hooked(module) and at + 2 < len(modules) and halves(modules[at + 1]):
        made = convolve_pooled(x, module) if _rectified(modules, at + 1) else None
        if made is not None:
            return made, 3
    return module(x), 1


def flat(sequence: nn.Sequential) -> Iterator[nn.Module]:
    """Its modules, and in their place those of sequences among them."""
    for module in sequence._modules.values():
        assert module is not None
        if type(module) is Sequential and not hooked(module):
            yield from flat(module)
        else:
            yield module


def _rectified(modules: list[nn.Module], at: int) -> bool:
    """Whether a ReLU follows, and nobody looks in between."""
    if at + 1 >= len(modules) or type(modules[at + 1]) is not nn.ReLU:
        return False
    return not hooked(modules[at]) and not hooked(modules[at + 1])


def _blocks(modules: list[nn.Module], at: int) -> Iterator[Block]:
    """The blocks from here on, one behind the other."""
    while at + 4 < len(modules) and _rectified(modules, at):
        before, _, conv, after, _ = modules[at : at + 5]
        if not fits(before, conv, after) or hooked(conv) or not _rectified(modules, at + 3):
            return
        point = modules[at + 5] if at + 5 < len(modules) else None
        point = None if point is None or not follows(point) or hooked(point) else point
        yield Block(before, conv, after, point)  # type: ignore[arg-type]
        if point is None:
            return
        at += 6


def hooked(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
