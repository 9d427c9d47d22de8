"""Which convolutions have a compiled kernel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedloom.nets.kernels.native import convolution, depthwise, spectral, stem, winograd
from fedloom.nets.kernels.native.applies import alike, plain

Pair = tuple[int, int]
FEW = 4  # channels of an image
NARROW = 16  # channels, which fill a vector
LARGEST = 7  # side of a first layer's kernel


def serves(conv: nn.Conv2d) -> bool:
    """Whether there is a kernel for some shape of this layer's inputs."""
    if depthwise.serves(conv):
        return True
    if conv.groups > 1 or conv.stride != (1, 1):
        return False
    if conv.in_channels <= FEW:
        return max(conv.kernel_size) <= LARGEST
    large = conv.kernel_size[0] > 3 and conv.kernel_size[1] > 3
    return (large or conv.kernel_size == (3, 3)) and min(conv.in_channels, conv.out_channels) >= NARROW


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
    if not plain(x):
        return None
    if not pooled and depthwise.applies(x, weight, bias, stride, padding, groups):
        return depthwise.depthwise(x, weight, bias, stride[0])
    if groups > 1 or stride != (1, 1) or x.shape[1] != weight.shape[1] or not alike(x, weight, bias):
        return None
    taps = (weight.shape[2], weight.shape[3])
    high, wide = (x.shape[axis + 2] + 2 * padding[axis] - taps[axis] + 1 for axis in (0, 1))
    if min(high, wide) < (2 if pooled else 1):
        return None
    if x.shape[1] <= FEW:
        if max(taps) > LARGEST or x.requires_grad:
            return None
        return convolution.convolve(stem, x, weight, bias, padding, pooled)
    if min(x.shape[1], len(weight)) < NARROW:
        return None
    if taps == (3, 3) and winograd.pays(tuple(x.shape), padding):
        return convolution.convolve(winograd, x, weight, bias, padding, pooled)
    if min(taps) > 3 and _transformed(x, len(weight), taps, padding):
        return convolution.convolve(spectral, x, weight, bias, padding, pooled)
    return None


def convolve_pooled(x: Tensor, conv: nn.Conv2d) -> Tensor | None:
    """This layer, then max_pool2d(2) and relu, by one compiled kernel; None where there is none."""
    if (
        not getattr(conv, "native", False)
        or type(conv).forward is not nn.Conv2d.forward
        or isinstance(conv.padding, str)
    ):
        return None
    (down, right), (high, wide) = conv.stride, conv.padding
    return convolve(x, conv.weight, conv.bias, (down, right), (high, wide), conv.groups, pooled=True)


def _transformed(x: Tensor, out: int, taps: Pair, padding: Pair) -> bool:
    batch, inputs, high, wide = x.shape
    return spectral.pays(batch, (inputs, out), (high, wide), taps, padding, torch.is_grad_enabled())
