"""Which convolutions have a compiled kernel."""

from __future__ import annotations

from torch import Tensor, nn

from fedloom.nets.kernels.native import stem, winograd
from fedloom.nets.kernels.native.applies import alike, plain

Pair = tuple[int, int]
FEW = 4  # channels of an image


def serves(conv: nn.Conv2d) -> bool:
    """Whether there is a kernel for some shape of this layer's inputs."""
    return conv.groups == 1 and conv.stride == (1, 1) and (conv.in_channels <= FEW or conv.kernel_size == (3, 3))


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Pair,
    padding: Pair,
    groups: int,
    pooled: bool = False,
) -> Tensor | None:
    """The convolution by a compiled kernel; None where there is none for these shapes. Shapes alone decide.

    `pooled`: followed by max_pool2d(2) and relu.
    """
    if not (plain(x) and alike(x, weight, bias)) or groups > 1 or stride != (1, 1):
        return None
    made = [x.shape[axis] + 2 * padding[axis - 2] - weight.shape[axis] + 1 for axis in (2, 3)]
    if min(made) < (2 if pooled else 1) or x.shape[1] != weight.shape[1]:
        return None
    if x.shape[1] <= FEW:
        return None if x.requires_grad else stem.convolve(x, weight, bias, padding, pooled)
    if weight.shape[2:] == (3, 3) and max(padding) <= 2:
        return winograd.convolve(x, weight, bias, padding, pooled)
    return None
