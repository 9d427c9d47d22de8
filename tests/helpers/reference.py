"""Federated training written out plainly: double precision, one named tensor at a time, one client after the other.

It reads a run folder (first weights, who holds what, the cohorts, the recipe) and the digits from scikit-learn itself, and
shares no code with what it checks, except the keys of the random draws: a shuffle is part of the experiment.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor

from fedloom.rng import torch_generator

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a whole recipe is read for every reference

Weights = dict[str, Tensor]
Loss = Callable[[Weights, Tensor, Tensor], Tensor]
Extra = Callable[[str, Tensor], Tensor]  # a tensor's name and present value -> what is added to its gradient


@cache
def training_images() -> tuple[Tensor, Tensor]:
    """Every fifth image is test; x / 16, then the training samples' mean and deviation."""
    bunch = load_digits()
    kept = np.arange(len(bunch.target)) % 5 != 0
    x = bunch.images[kept].reshape(-1, 64) / 16
    return torch.from_numpy((x - x.mean()) / x.std()), torch.from_numpy(bunch.target[kept])


def read(path: Path) -> Weights:
    return {name: tensor.double() for name, tensor in load_file(path).items()}


class Problem:
    """What a run folder says about the experiment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = yaml.load((path / "recipe.yaml").read_text(), LOADER)
        self.initial = read(path / "initial.safetensors")
        self.lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
        self.cohorts: list[list[int]] = [line["cohort"] for line in self.lines]
        stored = np.load(path / "partition.npz")
        index, offsets = stored["train_index"], stored["train_offsets"]
        x, y = training_images()
        self.data = [(x[index[begin:end]], y[index[begin:end]]) for begin, end in pairwise(offsets)]

    @property
    def rounds(self) -> Iterator[tuple[int, list[int]]]:
        return enumerate(self.cohorts, start=1)

    def rate(self, t: int) -> float:
        """Of round t = 1, 2, ..., T: one tenth from the half on and again from three quarters on; or a decay; or a wave."""
        lr, schedule, total = self.recipe["lr"], self.recipe["schedule"], self.recipe["rounds"]
        share = (t - 1) / total
        if schedule == "step":
            return float(lr * (1.0 if share < 0.5 else 0.1 if share < 0.75 else 0.01))
        if schedule == "cosine":
            return float(lr * (1 + math.cos(math.pi * share)) / 2)
        if schedule.startswith("exp:"):
            return float(lr * float(schedule[4:]) ** (t - 1))
        return float(lr)

    def shares(self, cohort: Sequence[int]) -> list[float]:
        sizes = [len(self.data[k][1]) if self.recipe["weighting"] == "samples" else 1 for k in cohort]
        return [size / sum(sizes) for size in sizes]

    def shuffles(self, t: int, k: int) -> torch.Generator:
        return torch_generator(self.recipe["seed"], "local", t, k)

    def batches(self, k: int, epochs: int, draws: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.data[k]
        size = len(y) if self.recipe["batch"] == "full" else self.recipe["batch"]
        for _ in range(epochs):
            yield from ((x[chosen], y[chosen]) for chosen in torch.randperm(len(y), generator=draws).split(size))

    def steps(self, k: int) -> int:
        size = len(self.data[k][1]) if self.recipe["batch"] == "full" else self.recipe["batch"]
        return int(self.recipe["epochs"] * -(-len(self.data[k][1]) // size))

    def effective(self, steps: int) -> float:
        """How far a constant gradient of one carries in this many steps of rate one, by making them."""
        velocity = distance = 0.0
        for _ in range(steps):
            velocity = self.recipe["momentum"] * velocity + 1
            distance += velocity
        return distance

    def local(
        self,
        w_g: Weights,
        t: int,
        k: int,
        loss: Loss,
        names: Sequence[str] | None = None,
        extra: Extra | None = None,
        batches: Iterator[tuple[Tensor, Tensor]] | None = None,
    ) -> Weights:
        """The client's epochs of torch's SGD: decay joins the gradient, then momentum, whose buffers begin at zero."""
        w, names = dict(w_g), list(w_g) if names is None else names
        velocity = {name: torch.zeros_like(w[name]) for name in names}
        for x, y in batches or self.batches(k, self.recipe["epochs"], self.shuffles(t, k)):
            gradient = gradients(loss, w, x, y, names)
            for name in names:
                g = gradient[name] if extra is None else gradient[name] + extra(name, w[name])
                g = g + self.recipe["weight_decay"] * w[name]
                velocity[name] = self.recipe["momentum"] * velocity[name] + g
                w[name] = w[name] - self.rate(t) * velocity[name]
        return w


def gradients(loss: Loss, w: Weights, x: Tensor, y: Tensor, names: Sequence[str]) -> Weights:
    live = {name: value.clone().requires_grad_(name in names) for name, value in w.items()}
    found = torch.autograd.grad(loss(live, x, y), [live[name] for name in names])
    return dict(zip(names, found, strict=True))


def mean(rows: Sequence[Weights], shares: Sequence[float]) -> Weights:
    """sum_i p_i w_i, tensor by tensor."""
    return {name: sum((p * row[name] for p, row in zip(shares, rows, strict=True))) for name in rows[0]}  # type: ignore[misc]


def square(w: Weights) -> float:
    return sum(float(value.square().sum()) for value in w.values())


def flat(w: Weights, names: Sequence[str] | None = None) -> Tensor:
    """Tensors end to end, as the flat vectors of checkpoints hold them; in the net's own order unless told otherwise."""
    return torch.cat([w[name].reshape(-1) for name in (names or [n for n in ORDER if n in w])])


ORDER = ("body.1.weight", "body.1.bias", "head.weight", "head.bias")
BODY, HEAD = ORDER[:2], ORDER[2:]


# the nets: mlp (Flatten, Linear, ReLU, Linear) and linear (Flatten, Linear)


def features(w: Weights, x: Tensor) -> Tensor:
    return torch.relu(x @ w["body.1.weight"].T + w["body.1.bias"]) if "body.1.weight" in w else x


def cross_entropy(w: Weights, x: Tensor, y: Tensor) -> Tensor:
    logits = features(w, x) @ w["head.weight"].T + w["head.bias"]
    return -logits.log_softmax(1)[torch.arange(len(y)), y].mean()


def normalized_cross_entropy(w: Weights, x: Tensor, y: Tensor) -> Tensor:
    """z = V f / ||f||."""
    f = features(w, x)
    logits = (f / f.square().sum(1, keepdim=True).sqrt()) @ w["head.weight"].T
    return -logits.log_softmax(1)[torch.arange(len(y)), y].mean()


def dot_regression(w: Weights, x: Tensor, y: Tensor) -> Tensor:
    """1/2 (cos(f, v_y) - 1)^2."""
    cosine = F.cosine_similarity(features(w, x), w["head.weight"][y], dim=1)
    return 0.5 * (cosine - 1).square().mean()


def distilled(base: Loss, beta: float, w_g: Weights) -> Loss:
    """beta * L + (1 - beta) * (1/d) ||f - f_g||^2, f_g of the weights that were broadcast."""

    def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        f, f_g = features(w, x), features(w_g, x)
        return beta * base(w, x, y) + (1 - beta) * (f - f_g).square().sum(1).mean() / f.shape[1]

    return loss


# the methods


def fedavg(
    p: Problem,
    loss: Loss | Callable[[Weights], Loss] = cross_entropy,
    names: Sequence[str] | None = None,
    teaching: bool = False,
) -> Weights:
    """The average of what clients trained; everything that is not in `names` stays. With `teaching`, w_g -> loss."""
    w = p.initial
    for t, cohort in p.rounds:
        used: Loss = loss(w) if teaching else loss  # type: ignore[assignment, call-arg, arg-type]
        w = mean([p.local(w, t, k, used, names) for k in cohort], p.shares(cohort))
    return w


def prox(p: Problem, mu: float) -> Weights:
    """L + (mu/2) ||w - w_g||^2, by differentiating it."""

    def near(w_g: Weights) -> Loss:
        def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
            distance = sum((w[name] - w_g[name]).square().sum() for name in w)
            return cross_entropy(w, x, y) + mu / 2 * distance

        return loss

    return fedavg(p, near, teaching=True)


def scaffold(p: Problem) -> tuple[Weights, Weights, list[Weights]]:
    """Weights, server control, client controls (option II, K replaced by the effective number of steps)."""
    w = p.initial
    zero = {name: torch.zeros_like(value) for name, value in w.items()}
    c, c_i = zero, [zero for _ in p.data]
    for t, cohort in p.rounds:
        uploads, changes = [], []
        for k in cohort:
            w_k = p.local(w, t, k, cross_entropy, extra=lambda name, _, k=k, c=c: c[name] - c_i[k][name])
            scale = p.rate(t) * p.effective(p.steps(k))
            new = {n: c_i[k][n] - c[n] + (w[n] - w_k[n]) / scale for n in w}
            changes.append({n: new[n] - c_i[k][n] for n in w})
            uploads.append(w_k)
            c_i[k] = new
        w = mean(uploads, p.shares(cohort))
        average = mean(changes, [1 / len(cohort)] * len(cohort))
        c = {n: c[n] + len(cohort) / len(p.data) * average[n] for n in w}
    return w, c, c_i


def nova(p: Problem) -> Weights:
    """w <- w_g - tau sum p_i d_i, d_i = (w_g - w_i) / a_i, tau = sum p_i a_i."""
    w = p.initial
    for t, cohort in p.rounds:
        shares, a = p.shares(cohort), [p.effective(p.steps(k)) for k in cohort]
        rows = [p.local(w, t, k, cross_entropy) for k in cohort]
        d = [{n: (w[n] - row[n]) / a_i for n in w} for row, a_i in zip(rows, a, strict=True)]
        tau = sum(share * a_i for share, a_i in zip(shares, a, strict=True))
        step = mean(d, shares)
        w = {n: w[n] - tau * step[n] for n in w}
    return w


def exp(p: Problem, eps: float) -> tuple[Weights, Weights, list[float]]:
    """The mean of the last two iterates, the last iterate, and the server's rate of every round."""
    w = before = p.initial
    rates = []
    for t, cohort in p.rounds:
        shares = p.shares(cohort)
        rows = [p.local(w, t, k, cross_entropy) for k in cohort]
        moves = [{n: row[n] - w[n] for n in w} for row in rows]
        move = mean(moves, shares)
        spread = sum(share * square(m) for share, m in zip(shares, moves, strict=True))
        rates.append(max(1.0, spread / (2 * (square(move) + eps))))
        before, w = w, {n: w[n] + rates[-1] * move[n] for n in w}
    return {n: (w[n] + before[n]) / 2 for n in w}, w, rates


def fedper(p: Problem) -> tuple[Weights, list[Weights]]:
    """The shared weights with the head as drawn, and every client's own head."""
    return _own_heads(p, lambda w, t, k: p.local(w, t, k, cross_entropy))


def fedrep(p: Problem, head_epochs: int) -> tuple[Weights, list[Weights]]:
    """First the client's own head with the body as received, then the body with that head."""

    def train(w: Weights, t: int, k: int) -> Weights:
        draws = p.shuffles(t, k)
        w = p.local(w, t, k, cross_entropy, HEAD, batches=p.batches(k, head_epochs, draws))
        return p.local(w, t, k, cross_entropy, BODY, batches=p.batches(k, p.recipe["epochs"], draws))

    return _own_heads(p, train)


def _own_heads(p: Problem, train: Callable[[Weights, int, int], Weights]) -> tuple[Weights, list[Weights]]:
    w = p.initial
    heads = [{name: w[name] for name in HEAD} for _ in p.data]
    for t, cohort in p.rounds:
        rows = [train({**w, **heads[k]}, t, k) for k in cohort]
        for k, row in zip(cohort, rows, strict=True):
            heads[k] = {name: row[name] for name in HEAD}
        body = mean(rows, p.shares(cohort))
        w = {**w, **{name: body[name] for name in BODY}}
    return w, heads
