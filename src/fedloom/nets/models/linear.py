"""Softmax regression on the pixels: a body without parameters."""

from __future__ import annotations

import math

from torch import nn

from fedloom.nets.registry import BodyHead, Shape, model


@model("linear", "softmax regression on the pixels", origin="classical")
def linear(shape: Shape, classes: int) -> BodyHead:
    return nn.Flatten(), nn.Linear(math.prod(shape), classes)
