"""What clients keep for themselves, and how well it serves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from reference import Loss, Problem, Weights, cross_entropy, gradients, load_digits, mean
from reference_heads import Normalizer
from torch import Tensor

from fedloom.rng import torch_generator

XY = tuple[Tensor, Tensor]


@cache
def held_images() -> tuple[Tensor, Tensor]:
    """Every fifth image, prepared as the training samples are: x / 16, then their mean and deviation."""
    bunch = load_digits()
    held = np.arange(len(bunch.target)) % 5 == 0
    x = bunch.images.reshape(-1, 64) / 16
    return torch.from_numpy((x[held] - x[~held].mean()) / x[~held].std()), torch.from_numpy(bunch.target[held])


def share_right(logits: Tensor, y: Tensor) -> float:
    return float((logits.argmax(1) == y).double().mean())


def own_tests(p: Problem) -> list[tuple[Tensor, Tensor]]:
    """Every client's own test samples."""
    stored, (x, y) = np.load(p.path / "partition.npz"), held_images()
    index, offsets = stored["test_index"], stored["test_offsets"]
    return [(x[index[begin:end]], y[index[begin:end]]) for begin, end in pairwise(offsets)]


def personal(p: Problem, kept: Sequence[str], loss: Loss = cross_entropy) -> tuple[Weights, list[Weights]]:
    """The shared weights with what is kept as drawn, and what every client keeps. All of it is trained together."""
    w = p.initial
    own = [{name: w[name] for name in kept} for _ in p.data]
    for t, cohort in p.rounds:
        rows = [p.local({**w, **own[k]}, t, k, loss) for k in cohort]
        for k, row in zip(cohort, rows, strict=True):
            own[k] = {name: row[name] for name in kept}
        w = {**mean(rows, p.shares(cohort)), **{name: w[name] for name in kept}}
    return w, own


def plus(w: Weights, direction: Weights, factor: float) -> Weights:
    return {name: w[name] + factor * direction[name] for name in w}


def per_fedavg(p: Problem, alpha: float, beta: float | None, mode: str, delta: float = 1e-3) -> Weights:
    """min mean_i f_i(w - alpha grad f_i(w)), on three independent batches a step (two in first order)."""
    w_g = p.initial
    for t, cohort in p.rounds:
        rows = []
        for k in cohort:
            w, draws, (x, y) = dict(w_g), p.shuffles(t, k), p.data[k]
            size = len(y) if p.recipe["batch"] == "full" else p.recipe["batch"]

            def another(draws: torch.Generator = draws, x: Tensor = x, y: Tensor = y, size: int = size) -> XY:
                chosen = torch.randperm(len(y), generator=draws)[:size]
                return x[chosen], y[chosen]

            velocity = {name: torch.zeros_like(w[name]) for name in w}
            for batch in p.batches(k, p.recipe["epochs"], draws):
                names = list(w)
                ahead = plus(w, gradients(cross_entropy, w, *batch, names), -alpha)
                g = gradients(cross_entropy, ahead, *another(), names)
                if mode == "hf":
                    third = another()
                    up = gradients(cross_entropy, plus(w, g, delta), *third, names)
                    down = gradients(cross_entropy, plus(w, g, -delta), *third, names)
                    g = {n: g[n] - alpha * (up[n] - down[n]) / (2 * delta) for n in names}
                for n in names:
                    scale = 1.0 if beta is None else beta / p.rate(t)
                    velocity[n] = p.recipe["momentum"] * velocity[n] + scale * g[n] + p.recipe["weight_decay"] * w[n]
                    w[n] = w[n] - p.rate(t) * velocity[n]
            rows.append(w)
        w_g = mean(rows, p.shares(cohort))
    return w_g


def ditto(
    p: Problem, strength: float, names: Sequence[str] | None = None, loss: Loss = cross_entropy
) -> list[Weights | None]:
    """v_i <- v_i - eta (grad f_i(v_i) + strength (v_i - w^t)); w^t by plain averaging; None for who never took part."""
    w = p.initial
    own: list[Weights | None] = [None for _ in p.data]
    for t, cohort in p.rounds:
        for k in cohort:
            draws = torch_generator(p.recipe["seed"], "aside", "ditto", t, k)
            batches = p.batches(k, p.recipe["epochs"], draws)

            def pull(name: str, value: Tensor, w: Weights = w) -> Tensor:
                return strength * (value - w[name])

            own[k] = p.local(own[k] or p.initial, t, k, loss, names, pull, batches)
        w = mean([p.local(w, t, k, loss, names) for k in cohort], p.shares(cohort))
    return own


# a net with a normalizer: Flatten, Linear(64, 16), BatchNorm1d, ReLU, Linear

NORMED = """
from torch import nn

def normed(shape, classes):
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU())
    return body, nn.Linear(16, classes)
"""
NORM = ("body.2.weight", "body.2.bias")
STATISTICS = ("body.2.running_mean", "body.2.running_var")
REST = ("body.1.weight", "body.1.bias", "head.weight", "head.bias")

Normalize = Callable[[Weights, Tensor], Tensor]


def normed(w: Weights, x: Tensor, normalize: Normalize) -> Tensor:
    """Logits."""
    f = torch.relu(normalize(w, x @ w["body.1.weight"].T + w["body.1.bias"]))
    return f @ w["head.weight"].T + w["head.bias"]


def normed_clients(p: Problem, kept: Sequence[str]) -> tuple[Weights, list[Weights]]:
    """As `personal`, on the net with a normalizer, whose statistics are learned on the way."""
    w = p.initial
    own = [{name: w[name] for name in kept} for _ in p.data]
    for t, cohort in p.rounds:
        rows = []
        for k in cohort:
            mine = {**w, **own[k]}
            norm = Normalizer(mine, "body.2")

            def loss(v: Weights, x: Tensor, y: Tensor, norm: Normalizer = norm) -> Tensor:
                return -normed(v, x, norm.train).log_softmax(1)[torch.arange(len(y)), y].mean()

            row = {**p.local(mine, t, k, loss, (*REST, *NORM)), **norm.statistics()}
            own[k] = {name: row[name] for name in kept}
            rows.append(row)
        w = {**mean(rows, p.shares(cohort)), **{name: w[name] for name in kept}}
    return w, own
