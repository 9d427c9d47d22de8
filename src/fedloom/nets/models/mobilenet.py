"""MobileNet v1 for 32x32 images, as in FedBABU, FedFN and FedDr+: thirteen depthwise-separable blocks.

The body has 3,206,976 parameters, 1024 features. The mean over the last maps (2x2 at 32x32) admits other sizes.
"""

from __future__ import annotations

from torch import nn

from fedloom.data.spec import Shape
from fedloom.nets.registry import BodyHead, model

# output channels and stride of each block
_BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


@model(
    "mobilenet",
    "version 1 for 32x32: thirteen depthwise-separable blocks, batch-normalized",
    origin="Howard et al. 2017; FedBABU, FedFN, FedDr+",
    smallest=8,
)
def mobilenet(shape: Shape, classes: int) -> BodyHead:
    layers = [_normalized(nn.Conv2d(shape[0], 32, 3, padding=1, bias=False))]
    width = 32
    for out, stride in _BLOCKS:
        depthwise = nn.Conv2d(width, width, 3, stride, padding=1, groups=width, bias=False)
        layers += [_normalized(depthwise), _normalized(nn.Conv2d(width, out, 1, bias=False))]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(1024, classes)


def _normalized(conv: nn.Conv2d) -> nn.Module:
    return nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU(inplace=True))
