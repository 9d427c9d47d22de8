"""A net that needs nothing else: inputs as they are stored go in, logits come out. One class a kind of inputs."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedloom.data import InputSpec, Pipeline
from fedloom.methods import Part


class Standalone(nn.Module):
    """Normalization, net, and how a client reads its own logits."""

    noun: ClassVar[str]  # of the input: the name of forward's parameter
    # attributes, since torch 2.6 cannot export `get_buffer`
    factor: Tensor
    shift: Tensor
    counts: Tensor

    def __init__(
        self, net: nn.Module, inputs: InputSpec, pipeline: Pipeline, reader: Part | None, counts: Tensor | None
    ) -> None:
        super().__init__()
        self.net = net
        if inputs.kind != "tokens":
            deviation = torch.tensor(pipeline.std, dtype=torch.float64)
            shift = -torch.tensor(pipeline.mean, dtype=torch.float64) / deviation
            axes = [1] * (len(inputs.shape) - 1)  # statistics are of the first axis
            self.register_buffer("factor", (1 / (pipeline.scale * deviation)).float().view(-1, *axes))
            self.register_buffer("shift", shift.float().view(-1, *axes))
        self.reader = None if counts is None else reader
        self.register_buffer("counts", None if self.reader is None else counts)

    def normalized(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, x, self.factor)

    def logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits if self.reader is None else self.reader.own_logits(logits, self.counts)


class FromPixels(Standalone):
    noun = "pixels"

    def forward(self, pixels: Tensor) -> Tensor:
        return self.logits(self.normalized(pixels))


class FromFeatures(Standalone):
    noun = "features"

    def forward(self, features: Tensor) -> Tensor:
        return self.logits(self.normalized(features))


class FromTokens(Standalone):
    noun = "tokens"

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(tokens)


CLASSES: dict[str, type[Standalone]] = {"image": FromPixels, "features": FromFeatures, "tokens": FromTokens}


def standalone(
    net: nn.Module, inputs: InputSpec, pipeline: Pipeline, reader: Part | None, counts: Tensor | None
) -> Standalone:
    return CLASSES[inputs.kind](net, inputs, pipeline, reader, counts)


def input_facts(inputs: InputSpec, pipeline: Pipeline) -> dict[str, Any]:
    """The input's name, type, shape and range, and how it is normalized, for FILE.json."""
    noun = CLASSES[inputs.kind].noun
    facts: dict[str, Any] = {"name": noun, "dtype": "float32", "shape": ["batch", *inputs.shape]}
    if inputs.kind == "tokens":
        range_ = [0, inputs.vocabulary - 1]
        return {**facts, "dtype": "int64", "range": range_, "padding": inputs.padding}
    scaled = inputs.kind == "image"
    if scaled:
        facts["range"] = [0, inputs.scale]
    facts["normalization"] = {
        "where": "inside the model",
        "formula": f"({noun} / scale - mean) / std" if scaled else f"({noun} - mean) / std",
        **({"scale": pipeline.scale} if scaled else {}),
        "mean": list(pipeline.mean),
        "std": list(pipeline.std),
    }
    return facts


def example(inputs: InputSpec) -> Tensor:
    """Three inputs as they are stored."""
    if inputs.kind == "image":
        return torch.rand(3, *inputs.shape) * inputs.scale
    return inputs.random(3, generator=torch.Generator().manual_seed(0))
