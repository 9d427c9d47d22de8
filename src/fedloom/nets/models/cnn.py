"""A small CNN for small images: three convolutions, 32-64-128."""

from __future__ import annotations

from torch import nn

from fedloom.data.spec import Shape
from fedloom.nets.registry import BodyHead, model
from fedloom.nets.stages import stage


@model("cnn", "small: three 3x3 convolutions, 32-64-128, then the mean over the image", smallest=8)
def cnn(shape: Shape, classes: int) -> BodyHead:
    layers: list[nn.Module] = []
    width = shape[0]
    for out in (32, 64, 128):
        # max-pooling and ReLU commute, and ReLU is four times cheaper after it
        layers += [nn.Conv2d(width, out, 3, padding=1), nn.MaxPool2d(2), stage(nn.ReLU(inplace=True))]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(128, classes)
