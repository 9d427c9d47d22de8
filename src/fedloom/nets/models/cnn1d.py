"""A small CNN for signals: three convolutions along time, 32-64-128. Features of shape C,T: channels, then steps."""

from __future__ import annotations

from torch import Tensor, nn

from fedloom.data.spec import Shape
from fedloom.errors import FedloomError
from fedloom.nets.layers.sequences import channels_of
from fedloom.nets.parameters import Count
from fedloom.nets.registry import BodyHead, model

SHORTEST = 8  # steps: each of three poolings halves them


class Signal(nn.Module):
    """(B, D) as one channel of D steps."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1) if x.dim() == 2 else x


@model(
    "cnn1d",
    "for signals: three convolutions along the steps, 32-64-128, then the mean",
    kinds=("features",),
)
def cnn1d(shape: Shape, classes: int, kernel: Count = 5) -> BodyHead:
    width = channels_of(shape)
    if shape[-1] < SHORTEST:
        raise FedloomError(f"cnn1d needs at least {SHORTEST} steps; these have {shape[-1]}: choose mlp or linear")
    if kernel % 2 == 0:
        raise FedloomError(f"cnn1d: kernel is {kernel}; it must be odd")
    layers: list[nn.Module] = [Signal()]
    for out in (32, 64, 128):
        layers += [nn.Conv1d(width, out, kernel, padding=kernel // 2), nn.MaxPool1d(2), nn.ReLU(inplace=True)]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten()), nn.Linear(128, classes)
