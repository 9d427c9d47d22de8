"""Which convolutions have a compiled kernel."""

from __future__ import annotations

from torch import Tensor, nn

from fedloom.nets.kernels.native import depthwise
from fedloom.nets.kernels.native.applies import plain

Pair = tuple[int, int]


def serves(conv: nn.Conv2d) -> bool:
    """Whether there is a kernel for some shape of this layer's inputs."""
    return depthwise.serves(conv)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, groups: int) -> Tensor | None:
    """The convolution by a compiled kernel; None where there is none for these shapes. Shapes alone decide."""
    if not plain(x):
        return None
    if depthwise.applies(x, weight, bias, stride, padding, groups):
        return depthwise.depthwise(x, weight, bias, stride[0])
    return None
