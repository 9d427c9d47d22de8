"""Heads that are not a plain linear layer, and nets that normalize by the batch: forward passes and losses written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from reference import Loss, Problem, Weights, features, mean
from torch import Tensor


def counts(p: Problem, k: int) -> Tensor:
    """How many samples of each class a client holds."""
    return torch.tensor([int((p.data[k][1] == label).sum()) for label in range(10)], dtype=torch.double)


def averaged(p: Problem, loss: Callable[[int], Loss], names: Sequence[str]) -> Weights:
    """FedAvg where every client has a loss of its own."""
    w = p.initial
    for t, cohort in p.rounds:
        w = mean([p.local(w, t, k, loss(k), names) for k in cohort], p.shares(cohort))
    return w


def entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log of the true class's share of the exponentials."""
    e = (logits - logits.max(1, keepdim=True).values.detach()).exp()
    return -(e[torch.arange(len(y)), y] / e.sum(1)).log().mean()


def unit(f: Tensor) -> Tensor:
    return f / f.square().sum(1, keepdim=True).sqrt()


# SphereFed


def on_sphere(scale: float) -> Loss:
    return lambda w, x, y: entropy(scale * unit(features(w, x)) @ w["head.weight"].T, y)


def squares_on_sphere(w: Weights, x: Tensor, y: Tensor) -> Tensor:
    """Mean over batch and classes of (V f / ||f|| - onehot(y))^2."""
    target = torch.eye(10, dtype=torch.double)[y]
    return (unit(features(w, x)) @ w["head.weight"].T - target).square().sum() / (10 * len(y))


# FedETF


def projected(w: Weights, x: Tensor) -> Tensor:
    """z = s E normalize(P f)."""
    return w["head.scale"] * unit(features(w, x) @ w["head.projection.weight"].T) @ w["head.weight"].T


def balanced(n: Tensor, gamma: float) -> Loss:
    """-log of n_y^gamma e^{z_y} / sum_c n_c^gamma e^{z_c}; a class that is not held weighs nothing."""
    weight = torch.where(n > 0, n**gamma, torch.zeros_like(n)) if gamma else torch.ones_like(n)

    def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        e = weight * projected(w, x).exp()
        return -(e[torch.arange(len(y)), y] / e.sum(1)).log().mean()

    return loss


# batch normalization


class Normalizer:
    """Batch normalization of (B, d) as torch defines it: eps 1e-5; running averages move by a tenth, with the unbiased
    variance, every time it is trained with."""

    def __init__(self, w: Weights, name: str) -> None:
        self.name = name
        self.mean, self.var = w.get(f"{name}.running_mean"), w.get(f"{name}.running_var")

    def train(self, w: Weights, f: Tensor) -> Tensor:
        mean, var = f.mean(0), (f - f.mean(0)).square().mean(0)
        if self.mean is not None and self.var is not None:
            self.mean = 0.9 * self.mean + 0.1 * mean.detach()
            self.var = 0.9 * self.var + 0.1 * var.detach() * len(f) / (len(f) - 1)
        return self._scale(w, (f - mean) / (var + 1e-5).sqrt())

    def test(self, w: Weights, f: Tensor) -> Tensor:
        assert self.mean is not None and self.var is not None
        return self._scale(w, (f - self.mean) / (self.var + 1e-5).sqrt())

    def _scale(self, w: Weights, f: Tensor) -> Tensor:
        return f * w[f"{self.name}.weight"] + w[f"{self.name}.bias"]

    def statistics(self) -> Weights:
        if self.mean is None or self.var is None:
            return {}
        return {f"{self.name}.running_mean": self.mean, f"{self.name}.running_var": self.var}


# FedGELA on the mlp: its body, then the normalizer, then the simplex

GELA = ("body.0.1.weight", "body.0.1.bias", "body.1.weight", "body.1.bias")


def hidden(w: Weights, x: Tensor) -> Tensor:
    return torch.relu(x @ w["body.0.1.weight"].T + w["body.0.1.bias"])


def gela(
    p: Problem,
    temperature: float,
    beta: float | None = None,
    of_logits: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> Weights:
    """z_c = E_c <v_c, f> / T with E_c = C n_c / n; with `beta`, mixed with the distance from the global model's features,
    which stand on its running averages, or with a term `of_logits(<V, f>, <V, f_g>, y)`, both without E and T."""
    w = p.initial
    for t, cohort in p.rounds:
        rows = []
        for k in cohort:
            own, n = Normalizer(w, "body.1"), counts(p, k)

            def loss(
                v: Weights, x: Tensor, y: Tensor, own: Normalizer = own, n: Tensor = n, w_g: Weights = w
            ) -> Tensor:
                f = own.train(v, hidden(v, x))
                base = entropy(10 * n / n.sum() * (f @ v["head.weight"].T) / temperature, y)
                if beta is None:
                    return base
                f_g = Normalizer(w_g, "body.1").test(w_g, hidden(w_g, x))
                if of_logits is not None:
                    plain, plain_g = (features @ v["head.weight"].T for features in (f, f_g))
                    return beta * base + (1 - beta) * of_logits(plain, plain_g.detach(), y)
                return beta * base + (1 - beta) * (f - f_g).square().mean()

            row = p.local(w, t, k, loss, GELA)
            rows.append({**row, **own.statistics()})
        w = mean(rows, p.shares(cohort))
    return w
