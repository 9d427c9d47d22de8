"""`module:NAME-DIGEST`: a net that was given as an object, `fl.run(model=net)`, read from the cache."""

from __future__ import annotations

from torch import nn

from fedloom.data.spec import KINDS, InputSpec, Shape
from fedloom.nets.registry import Model, net_source
from fedloom.nets.stored import load


@net_source("module")
def stored(rest: str) -> Model:
    def module(shape: Shape, classes: int, inputs: InputSpec) -> nn.Module:
        return load(rest)

    return Model(f"module:{rest}", "a module from the cache", "the user", 1, module, KINDS, foreign=True)
