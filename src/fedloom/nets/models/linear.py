"""Softmax regression on the inputs: a body without parameters."""

from __future__ import annotations

import math

from torch import nn

from fedloom.data.spec import Shape
from fedloom.nets.registry import BodyHead, model


@model("linear", "softmax regression on the inputs", origin="classical", kinds=("image", "features"))
def linear(shape: Shape, classes: int) -> BodyHead:
    return nn.Flatten(), nn.Linear(math.prod(shape), classes)
