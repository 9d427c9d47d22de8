"""A small net with a normalizer, for methods that are about normalizers: --model benchmarks/normed.py:mlp."""

from __future__ import annotations

from torch import nn


def mlp(shape: tuple[int, int, int], classes: int) -> tuple[nn.Module, nn.Module]:
    channels, height, width = shape
    body = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 64), nn.BatchNorm1d(64), nn.ReLU())
    return body, nn.Linear(64, classes)
