"""A sequence of modules that computes a batch normalization and the ReLU behind it in one operation.

Which modules go together is seen in every pass, so a net may be hooked, taken apart and rebuilt as before.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from fedloom.nets.kernels.native.batchnorm import BatchNorm2d


class Sequential(nn.Sequential):
    def forward(self, input: Any) -> Any:
        modules = list(self._modules.values())
        at = 0
        while at < len(modules):
            module, after = modules[at], modules[at + 1] if at + 1 < len(modules) else None
            if type(module) is BatchNorm2d and type(after) is nn.ReLU and not (_hooked(module) or _hooked(after)):
                input = module.normalize(input, relu=True)
                at += 2
            else:
                assert module is not None
                input = module(input)
                at += 1
        return input


def _hooked(module: nn.Module) -> bool:
    """Whether someone looks at what passes between the modules."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
