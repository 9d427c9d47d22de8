"""Consistency of layers before and after aggregation, on FedNN's example: clients that differ by shift and scale."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedloom.analysis.consistency import Layer, compare, layers


def layer(weight: Tensor, x: Tensor) -> dict[str, Layer]:
    return {"conv": Layer(weight.reshape(-1), nn.functional.conv2d(x, weight).flatten(1))}


def normalized(weight: Tensor) -> Tensor:
    """FedNN, equation 4."""
    flat = weight.flatten(1)
    made = (flat - flat.mean(1, keepdim=True)) / flat.std(1, correction=0, keepdim=True)
    return made.view_as(weight)


def test_shift_and_scale_are_seen_and_weight_normalization_removes_them() -> None:
    draw = torch.Generator().manual_seed(0)
    base, x = torch.randn(4, 3, 3, 3, generator=draw), torch.rand(5, 3, 8, 8, generator=draw)
    weights = [base + 2, base * 3]  # the figure's two clients
    mean = sum(weights) / 2
    plain = compare([layer(w, x) for w in weights], [layer(mean, x)] * 2)[0]
    assert plain["weight_clients"] < 0.9 and plain["weight_global"] < 0.99
    assert plain["activation_shift"] > 0.5
    first, second = (compare([layer(w, x)], [layer(mean, x)])[0]["activation_scale"] for w in weights)
    assert first > 1.2 and second < 0.8
    normal = compare([layer(normalized(w), x) for w in weights], [layer(normalized(mean), x)] * 2)[0]
    for name in ("weight_clients", "weight_global", "weight_scale", "activation_global", "activation_scale"):
        assert normal[name] == pytest.approx(1, abs=1e-5)
    assert normal["activation_shift"] == pytest.approx(0, abs=1e-5)


def test_numbers_are_the_means_they_are_said_to_be() -> None:
    draw = torch.Generator().manual_seed(1)
    before = [{"a": Layer(*torch.randn(2, 6, generator=draw).split(1))} for _ in range(3)]
    after = [{"a": Layer(*torch.randn(2, 6, generator=draw).split(1))} for _ in range(3)]
    before = [{"a": Layer(model["a"].weight[0], model["a"].output)} for model in before]
    after = [{"a": Layer(model["a"].weight[0], model["a"].output)} for model in after]
    row = compare(before, after)[0]
    cos = nn.functional.cosine_similarity
    w, g = [m["a"].weight for m in before], [m["a"].weight for m in after]
    assert row["weight_global"] == pytest.approx(
        sum(float(cos(a, b, 0)) for a, b in zip(w, g, strict=True)) / 3, abs=1e-6
    )
    pairs = [(0, 1), (0, 2), (1, 2)]
    assert row["weight_clients"] == pytest.approx(sum(float(cos(w[i], w[j], 0)) for i, j in pairs) / 3, abs=1e-6)
    assert row["weight_scale"] == pytest.approx(sum(float(b.norm() / a.norm()) for a, b in zip(w, g, strict=True)) / 3)
    alone = compare(before[:1], after[:1])[0]
    assert math.isnan(alone["weight_clients"]) and not math.isnan(alone["weight_global"])


def test_layers_are_those_with_a_matrix_or_more() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 2))
    assert list(layers(net)) == ["0", "4"]
