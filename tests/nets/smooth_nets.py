"""Nets whose gradients differ by rounding alone when their sums are taken in another order."""

from __future__ import annotations

from torch import nn


def smooth(net: nn.Module) -> nn.Module:
    """Without kinks: where two pixels of a pool nearly tie, the last digit decides which of them gets the gradient."""
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, nn.Softplus())
            if isinstance(child, nn.MaxPool2d):
                setattr(parent, name, nn.AvgPool2d(child.kernel_size, child.stride, child.padding))
    return net
