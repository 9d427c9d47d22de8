"""A sequence of modules that computes some of them together: batch normalization and ReLU; pooling and ReLU, and a
convolution before them.

Which modules go together is seen in every pass, so a net may be hooked, taken apart and rebuilt as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from fedloom.nets.kernels.native.batchnorm import BatchNorm2d
from fedloom.nets.kernels.native.pool import halves, pool_relu, pools
from fedloom.nets.kernels.products import Conv2d


class Sequential(nn.Sequential):
    def forward(self, input: Any) -> Any:
        modules = list(self._modules.values())
        at = 0
        while at < len(modules):
            input, count = _first(modules[at : at + 3], input)
            at += count
        return input


def _first(modules: Sequence[nn.Module | None], x: Any) -> tuple[Any, int]:
    """What the first modules make of x, and how many of them have been computed."""
    module, *after = modules
    kinds = [type(one) for one in modules]
    if kinds[:2] == [BatchNorm2d, nn.ReLU] and not _hooked(*modules[:2]):
        assert isinstance(module, BatchNorm2d)
        return module.normalize(x, relu=True), 2
    if kinds == [Conv2d, nn.MaxPool2d, nn.ReLU] and halves(after[0]) and not _hooked(*modules):
        assert isinstance(module, Conv2d)
        y: Tensor | None = module.pooled(x)
        if y is not None:
            return y, 3
    if kinds[:2] == [nn.MaxPool2d, nn.ReLU] and halves(module) and pools(x) and not _hooked(*modules[:2]):
        return pool_relu(x), 2
    assert module is not None
    return module(x), 1


def _hooked(*modules: nn.Module | None) -> bool:
    """Whether someone looks at what passes between the modules."""
    return any(
        module is not None
        and (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)
        for module in modules
    )
