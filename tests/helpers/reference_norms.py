"""Normalizers written out from their equations, in double precision, and FedAvg of a small net that has them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from reference import Problem, Weights, mean
from reference_personal import held_images
from torch import Tensor

from fedloom.rng import torch_generator

# Two convolutions without normalizers: 8x8 -> 6x6 -> 2x2 maps. fedloom gives them the normalizers body.0.norm, body.2.norm.
MAPS = """
from torch import nn

def maps(shape, classes):
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2), nn.ReLU(), nn.Flatten())
    return body, nn.Linear(24, classes)
"""
SAMPLES, PIXELS, CHANNELS = 0, (2, 3), 1


def is_statistic(name: str) -> bool:
    return name.endswith(("running_mean", "running_var", "frozen"))


def spread(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and biased variance, with the axes kept."""
    center = x.mean(axes, keepdim=True)
    return center, (x - center).square().mean(axes, keepdim=True)


def by_groups(x: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    cut = x.view(len(x), groups, -1)
    center, var = (value.repeat_interleave(x.shape[1] // groups, 1) for value in spread(cut, (2,)))
    return center[..., None], var[..., None]


def channelwise(value: Tensor) -> Tensor:
    return value.view(1, -1, 1, 1)


class Normalized:
    """The small net with one kind of normalizer. `statistics` move while training; draws are Gumbel noise for agn."""

    def __init__(self, kind: str, wn: bool = False, groups: int = 2, mix: str = "std", tau: float = 5.0) -> None:
        self.kind, self.wn, self.groups, self.mix, self.tau = kind, wn, groups, mix, tau
        self.statistics: Weights = {}
        self.draws: torch.Generator | None = None  # None: evaluation
        self.by_test_batch = False

    def by_batch(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        kept = self.statistics
        if self.by_test_batch:
            return spread(x, (SAMPLES, *PIXELS))
        if self.draws is None:
            return channelwise(kept[f"{name}.running_mean"]), channelwise(kept[f"{name}.running_var"])
        center, var = spread(x, (SAMPLES, *PIXELS))
        count = x.numel() / x.shape[1]
        for leaf, new in (("running_mean", center), ("running_var", var * count / (count - 1))):
            kept[f"{name}.{leaf}"] = 0.9 * kept[f"{name}.{leaf}"] + 0.1 * new.detach().view(-1)
        return center, var

    def norm(self, w: Weights, name: str, x: Tensor, rounds: tuple[int, int]) -> Tensor:
        gamma, beta = channelwise(w[f"{name}.weight"]), channelwise(w[f"{name}.bias"])
        root = 1e-5
        if self.kind == "bn":
            mu, var = self.by_batch(name, x)
        elif self.kind == "gn":
            mu, var = by_groups(x, self.groups)
        elif self.kind == "ln":
            mu, var = spread(x, (CHANNELS, *PIXELS))
        elif self.kind == "in":
            mu, var = spread(x, PIXELS)
        elif self.kind == "frn":
            mu, var, root = torch.zeros(()), x.square().mean(PIXELS, keepdim=True), 1e-6
        elif self.kind == "rbn":
            x = x + channelwise(w[f"{name}.center_weight"]) * x.mean(PIXELS, keepdim=True)
            mu, var = self.by_batch(name, x)
            normal = (x - mu) / (var + root).sqrt()
            scale = channelwise(w[f"{name}.scale_weight"]) * normal.mean(PIXELS, keepdim=True)
            return gamma * normal / (1 + (-scale - channelwise(w[f"{name}.scale_bias"])).exp()) + beta
        elif self.kind == "sn":
            pairs = [spread(x, PIXELS), spread(x, (CHANNELS, *PIXELS)), self.by_batch(name, x)]
            shares = [w[f"{name}.{leaf}_selector"].softmax(0) for leaf in ("mean", "var")]
            mu, var = (
                sum((share * pair[i] for share, pair in zip(shares[i], pairs, strict=True)), torch.zeros(()))
                for i in (0, 1)
            )
        else:
            return self.adaptive(w, name, x, rounds, gamma, beta)
        return gamma * (x - mu) / (var + root).sqrt() + beta

    def adaptive(
        self, w: Weights, name: str, x: Tensor, rounds: tuple[int, int], gamma: Tensor, beta: Tensor
    ) -> Tensor:
        t, total = rounds
        tau = self.tau * (total + 0.001 - (t - 1)) / total
        (mu_b, var_b), (mu_g, var_g) = self.by_batch(name, x), by_groups(x, self.groups)
        noise = torch.zeros(2)
        if self.draws is not None:
            noise = -torch.empty(2).exponential_(generator=self.draws).log()
        a, b = ((w[f"{name}.selector"] + noise) / tau).exp()
        s_b, s_g = a / (a + b), b / (a + b)
        if self.mix == "std":
            sigma = s_b * (var_b + 1e-5).sqrt() + s_g * (var_g + 1e-5).sqrt()
        else:
            sigma = (s_b * var_b + s_g * var_g + 1e-5).sqrt()
        return gamma * (x - s_b * mu_b - s_g * mu_g) / sigma + beta

    def logits(self, w: Weights, x: Tensor, rounds: tuple[int, int]) -> Tensor:
        f = x.view(-1, 1, 8, 8)
        for i, stride in ((0, 1), (2, 2)):
            theta = w[f"body.{i}.weight"]
            if self.wn:
                mu, var = spread(theta, (1, 2, 3))
                theta = (theta - mu) / (var + 1e-10).sqrt()
            f = F.conv2d(f, theta, w[f"body.{i}.bias"], stride)
            if self.kind != "none":
                f = self.norm(w, f"body.{i}.norm", f, rounds)
            f = torch.maximum(f, channelwise(w[f"body.{i + 1}.threshold"])) if self.kind == "frn" else f.relu()
        return f.flatten(1) @ w["head.weight"].T + w["head.bias"]


def federated(p: Problem, net: Normalized) -> Weights:
    """FedAvg: parameters and statistics are averaged alike."""
    w, total = p.initial, p.recipe["rounds"]
    trained = [name for name in w if not is_statistic(name)]
    for t, cohort in p.rounds:
        rows = []
        for k in cohort:
            net.draws = torch_generator(p.recipe["seed"], "forward", t, k)
            net.statistics = {name: value for name, value in w.items() if is_statistic(name)}

            def loss(v: Weights, x: Tensor, y: Tensor, t: int = t) -> Tensor:
                return F.cross_entropy(net.logits(v, x, (t, total)), y)

            rows.append({**p.local(w, t, k, loss, trained), **net.statistics})
        w = mean(rows, p.shares(cohort))
    return w


def accuracy(p: Problem, net: Normalized, w: Weights, by_test_batch: bool = False) -> float:
    """On all test samples, without noise, by the statistics in w or by those of test batches of 100."""
    x, y = held_images()
    net.draws, net.statistics = None, {name: value for name, value in w.items() if is_statistic(name)}
    net.by_test_batch, total = by_test_batch, p.recipe["rounds"]
    guesses = [net.logits(w, batch, (total, total)).argmax(1) for batch in x.split(100)]
    return float((torch.cat(guesses) == y).double().mean())
