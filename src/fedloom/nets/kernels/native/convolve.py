"""Which convolutions have a compiled kernel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedloom.nets.kernels.native import convolution, depthwise, im2col, spectral, stem, winograd
from fedloom.nets.kernels.native.applies import alike, plain

Pair = tuple[int, int]
FEW = 4  # channels of an image
NARROW = 16  # channels, which fill a vector
MANY = 64  # channels from which on products of matrices are faster than torch's convolutions
LARGEST = 7  # side of a first layer's kernel


def serves(conv: nn.Conv2d) -> bool:
    """Whether there is a kernel for some shape of this layer's inputs."""
    if depthwise.serves(conv):
        return True
    if conv.groups > 1:
        return False
    if conv.in_channels <= FEW:
        return max(conv.kernel_size) <= LARGEST and conv.stride == (1, 1)
    tiled = conv.stride == (1, 1) and (conv.kernel_size == (3, 3) or min(conv.kernel_size) > 3)
    return min(conv.in_channels, conv.out_channels) >= (NARROW if tiled else MANY)


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
    if groups > 1 or x.shape[1] != weight.shape[1] or not alike(x, weight, bias):
        return None
    geometry = convolution.Geometry(stride, padding)
    way = _way(x, weight, geometry, pooled)
    return None if way is None else convolution.convolve(way, x, weight, bias, geometry, pooled)


def _way(x: Tensor, weight: Tensor, geometry: convolution.Geometry, pooled: bool) -> convolution.Way | None:
    images, taps, channels = tuple(x.shape), (weight.shape[2], weight.shape[3]), (x.shape[1], len(weight))
    size = im2col.made(images, taps, geometry)
    if min(size) < (2 if pooled else 1):
        return None
    if geometry.stride == (1, 1):
        if channels[0] <= FEW:
            return stem if max(taps) <= LARGEST and not x.requires_grad else None
        if min(channels) >= NARROW and taps == (3, 3) and winograd.pays(images, geometry.padding):
            return winograd
        if min(channels) >= NARROW and min(taps) > 3 and _transformed(images, channels, taps, geometry.padding):
            return spectral
    return im2col if not pooled and min(channels) >= MANY and im2col.pays(images[0], size) else None


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


def _transformed(images: tuple[int, ...], channels: Pair, taps: Pair, padding: Pair) -> bool:
    batch, _, high, wide = images
    return spectral.pays(batch, channels, (high, wide), taps, padding, torch.is_grad_enabled())
