"""One hidden layer of 64 units."""

from __future__ import annotations

import math

from torch import nn

from fedloom.data.spec import Shape
from fedloom.nets.parameters import Widths
from fedloom.nets.registry import BodyHead, model
from fedloom.nets.stages import stage


@model("mlp", "hidden layers of ReLU units, one of 64 by default", origin="classical", kinds=("image", "features"))
def mlp(shape: Shape, classes: int, hidden: Widths = (64,)) -> BodyHead:
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(shape)
    for units in hidden:
        layers += [nn.Linear(width, units), stage(nn.ReLU(inplace=True))]
        width = units
    return nn.Sequential(*layers), nn.Linear(width, classes)
