"""The VGG11 of FedNTD's, FedFN's and FedDr+'s experiments: no normalization, no dropout, fully connected 512-512.

`dropout=0.5` before both fully connected layers is FNR-FL's.

9,750,922 parameters with 10 classes. Convolutions are drawn from N(0, 2 / (k k out)) with bias 0. At 32x32 the maps end
as 1x1; larger images are averaged to that.
"""

from __future__ import annotations

import math

from torch import nn

from fedloom.data.spec import Shape
from fedloom.nets.parameters import Rate
from fedloom.nets.registry import BodyHead, model
from fedloom.nets.stages import stage

_WIDTHS = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # a tuple a stage; each stage ends with pooling


@model(
    "vgg11", "eight 3x3 convolutions, 64 to 512, fully connected 512-512", origin="FedNTD, FedFN, FedDr+", smallest=32
)
def vgg11(shape: Shape, classes: int, dropout: Rate = 0.0) -> BodyHead:
    layers: list[nn.Module] = []
    width = shape[0]
    for widths in _WIDTHS:
        for out in widths:
            layers += [_conv(width, out), nn.ReLU(inplace=True)]
            width = out
        # max-pooling and ReLU commute, and ReLU is four times cheaper after it
        layers[-1:] = [nn.MaxPool2d(2), stage(layers[-1])]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]  # (B, 512)
    for _ in range(2):
        layers += [nn.Dropout(dropout)] if dropout else []
        layers += [nn.Linear(512, 512), stage(nn.ReLU(inplace=True))]
    return nn.Sequential(*layers), nn.Linear(512, classes)


def _conv(inputs: int, out: int) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, out, 3, padding=1)
    nn.init.normal_(conv.weight, std=math.sqrt(2 / (3 * 3 * out)))
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return conv
