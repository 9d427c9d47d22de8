"""One hidden layer of 64 units."""

from __future__ import annotations

import math

from torch import nn

from fedloom.data.spec import Shape
from fedloom.nets.registry import BodyHead, model


@model("mlp", "one hidden layer of 64 units", origin="classical", kinds=("image", "features"))
def mlp(shape: Shape, classes: int) -> BodyHead:
    body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU(inplace=True))
    return body, nn.Linear(64, classes)
