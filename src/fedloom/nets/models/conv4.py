"""FedBABU's 4convNet: four times convolution of 64, batch normalization, ReLU, pooling.

115,658 parameters at 32x32x3 with 10 classes; features are the last maps, 64 (H // 16) (W // 16) of them. The
convolutions keep their bias, as in FedBABU's code, although the normalization cancels it.
"""

from __future__ import annotations

from torch import nn

from fedloom.data.spec import Shape
from fedloom.nets.registry import BodyHead, model
from fedloom.nets.stages import stage


@model("conv4", "four 3x3 convolutions of 64, batch-normalized", origin="FedBABU (4convNet)", smallest=16)
def conv4(shape: Shape, classes: int) -> BodyHead:
    channels, height, width = shape
    layers: list[nn.Module] = []
    for inputs in (channels, 64, 64, 64):
        # max-pooling and ReLU commute, and ReLU is four times cheaper after it
        layers += [
            nn.Conv2d(inputs, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.MaxPool2d(2),
            stage(nn.ReLU(inplace=True)),
        ]
    return nn.Sequential(*layers, nn.Flatten()), nn.Linear(64 * (height // 16) * (width // 16), classes)
