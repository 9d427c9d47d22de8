"""The LeNet of FedDyn's, FedDC's and FedNN's code: two 5x5 convolutions of 64, fully connected 384 and 192.

797,962 parameters at 32x32x3 with 10 classes. The first fully connected layer follows from the image: 1600 there.
"""

from __future__ import annotations

from torch import nn

from fedloom.data.spec import Shape
from fedloom.nets.registry import BodyHead, model
from fedloom.nets.stages import stage


@model("lenet", "two 5x5 convolutions of 64, fully connected 384-192", origin="FedDC, FedNN", smallest=16)
def lenet(shape: Shape, classes: int) -> BodyHead:
    height, width = (((side - 4) // 2 - 4) // 2 for side in shape[1:])  # 32 -> 28, 14 -> 10, 5
    body = nn.Sequential(
        # max-pooling and ReLU commute, and ReLU is four times cheaper after it
        *(nn.Conv2d(shape[0], 64, 5), nn.MaxPool2d(2), stage(nn.ReLU(inplace=True))),
        *(nn.Conv2d(64, 64, 5), nn.MaxPool2d(2), stage(nn.ReLU(inplace=True))),
        nn.Flatten(),
        *(nn.Linear(64 * height * width, 384), stage(nn.ReLU(inplace=True))),
        *(nn.Linear(384, 192), stage(nn.ReLU(inplace=True))),
    )
    return body, nn.Linear(192, classes)
