"""Modules as people bring them: not made of a body and a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Conv(nn.Module):
    """Batch-normalized, with a frozen layer, constants (one of them infinite), a counter, and dropout."""

    def __init__(self, classes: int = 10, act: Any = F.relu) -> None:
        super().__init__()
        self.classifier = nn.Linear(16, classes)  # registered first, called last
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 36, 16)
        self.fixed = nn.Linear(16, 16).requires_grad_(False)
        self.drop = nn.Dropout(0.1)
        self.act = act
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
        self.register_buffer("count", torch.tensor([3]))
        self.register_buffer("hidden_scale", torch.tensor([0.5]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn(self.conv(x))).flatten(1)
        x = self.fixed(self.drop(torch.relu(self.fc(x)))) * self.hidden_scale
        return self.classifier(x + self.mask[:1])


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


class Tied(nn.Module):
    """Returns a dataclass; two layers of its body share one weight; its control flow depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Output:
        x = self.second(self.first(x.flatten(1)).relu())
        if x.mean() > 0:
            x = x.tanh()
        return Output(None, self.out(x))


class TiedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(64, 10, bias=False)
        self.out = nn.Linear(64, 10)
        self.out.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.pad(self.embedding(x.flatten(1)), (0, 54)))


class Softmaxed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1)).log_softmax(1)


class Maps(nn.Module):
    """The features of its head are no vector."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.squeeze(1))


class Picked(nn.Module):
    """Its head makes logits of every row, and one of them is picked afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return self.score(x.squeeze(1))[:, -1], 3


class ConvHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 4, 3)
        self.last = nn.Sequential(nn.Linear(144, 20), nn.ReLU(), nn.Linear(20, 10), nn.Softplus())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x).flatten(1))


class Uncopied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)
        self.made = self.fc.weight * 2  # not a leaf: torch refuses to copy it

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))


def conv(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Conv(classes)


def tied(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Tied()


def maps(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Maps()
