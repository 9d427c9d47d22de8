"""Terms that are added to or mixed into the local loss, and corrections that are remembered: the papers' losses written
out and differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from reference import Loss, Problem, Weights, cross_entropy, features, fedavg, mean
from torch import Tensor

Said = Callable[[Weights, Tensor], Tensor]  # weights and images -> features, or logits
Taught = Callable[[Weights], Loss]  # the weights that the round began with -> a loss, or a term of one


def logits(w: Weights, x: Tensor) -> Tensor:
    return features(w, x) @ w["head.weight"].T + w["head.bias"]


def cosines(w: Weights, x: Tensor) -> Tensor:
    """Logits of a head without a bias on features of length one."""
    f = features(w, x)
    return (f / f.square().sum(1, keepdim=True).sqrt()) @ w["head.weight"].T


def squared_distance(w: Weights, v: Weights, names: Sequence[str] | None = None) -> Tensor:
    return sum(((w[n] - v[n]).square().sum() for n in names or w), start=torch.zeros((), dtype=torch.double))


def inner(w: Weights, v: Weights) -> Tensor:
    return sum(((w[n] * v[n]).sum() for n in w), start=torch.zeros((), dtype=torch.double))


def weighted(base: Loss, term: Taught, weight: float) -> Taught:
    """L = L_base + weight * R."""
    return lambda w_g: lambda w, x, y: base(w, x, y) + weight * term(w_g)(w, x, y)


def mixed(base: Loss, term: Taught, beta: float) -> Taught:
    """L = beta * L_base + (1 - beta) * R."""
    return lambda w_g: lambda w, x, y: beta * base(w, x, y) + (1 - beta) * term(w_g)(w, x, y)


# terms


def near(names: Sequence[str] | None = None) -> Taught:
    """1/2 ||w - w_g||^2, over all tensors or over some."""
    return lambda w_g: lambda w, x, y: squared_distance(w, w_g, names) / 2


def divergence(z_g: Tensor, z: Tensor, t: float) -> Tensor:
    """KL(softmax(z_g / t) || softmax(z / t)), the mean over the batch."""
    p, q = ((v / t).exp() / (v / t).exp().sum(1, keepdim=True) for v in (z_g, z))
    return (p * (p.log() - q.log())).sum(1).mean()


def distillation(t: float, said: Said = logits) -> Taught:
    return lambda w_g: lambda w, x, y: t**2 * divergence(said(w_g, x), said(w, x), t)


def not_true(z: Tensor, y: Tensor) -> Tensor:
    """Each row without the logit of its true class."""
    return torch.stack([torch.cat([row[:label], row[label + 1 :]]) for row, label in zip(z, y.tolist(), strict=True)])


def not_true_distillation(t: float, said: Said = logits) -> Taught:
    return lambda w_g: lambda w, x, y: t**2 * divergence(not_true(said(w_g, x), y), not_true(said(w, x), y), t)


def logit_distillation(said: Said = logits) -> Taught:
    return lambda w_g: lambda w, x, y: (said(w, x) - said(w_g, x)).square().sum(1).mean() / said(w, x).shape[1]


def feature_norm(mu: float) -> Loss:
    """Cross-entropy + mu * mean ||f||."""
    return lambda w, x, y: cross_entropy(w, x, y) + mu * features(w, x).square().sum(1).sqrt().mean()


def contrast(z: Tensor, z_g: Tensor, z_prev: Tensor, temperature: float) -> Tensor:
    """Mean of -log[ e^{cos(z, z_g)/T} / (e^{cos(z, z_g)/T} + e^{cos(z, z_prev)/T}) ]."""

    def similar(a: Tensor, b: Tensor) -> Tensor:
        return ((a * b).sum(1) / (a.square().sum(1) * b.square().sum(1)).sqrt() / temperature).exp()

    return -(similar(z, z_g) / (similar(z, z_g) + similar(z, z_prev))).log().mean()


# methods


def moon(
    p: Problem,
    temperature: float = 0.5,
    weight: float | None = None,
    beta: float | None = None,
    base: Loss = cross_entropy,
    said: Said = features,
) -> tuple[Weights, list[Weights]]:
    """Weights, and every client's last local ones; before its first round these are the ones that were drawn."""
    w, last = p.initial, [p.initial for _ in p.data]
    for t, cohort in p.rounds:
        for k in cohort:

            def term(w_g: Weights, last_k: Weights = last[k]) -> Loss:
                return lambda v, x, y: contrast(said(v, x), said(w_g, x), said(last_k, x), temperature)

            loss = mixed(base, term, beta) if weight is None else weighted(base, term, weight)  # type: ignore[arg-type]
            last[k] = p.local(w, t, k, loss(w))
        w = mean([last[k] for k in cohort], p.shares(cohort))
    return w, last


def bent(alpha: float, center: Weights, slope: Weights) -> Loss:
    """Cross-entropy + (alpha/2) ||w - center||^2 + <w, slope>."""
    return lambda w, x, y: cross_entropy(w, x, y) + alpha / 2 * squared_distance(w, center) + inner(slope, w)


def feddyn(p: Problem, alpha: float) -> tuple[Weights, Weights, list[Weights]]:
    """Weights, the server's h, and every client's lambda."""
    w = p.initial
    zero = {name: torch.zeros_like(value) for name, value in w.items()}
    h, remembered = zero, [zero for _ in p.data]
    for t, cohort in p.rounds:
        rows = []
        for k in cohort:
            rows.append(p.local(w, t, k, bent(alpha, w, {n: -remembered[k][n] for n in w})))
            remembered[k] = {n: remembered[k][n] - alpha * (rows[-1][n] - w[n]) for n in w}
        h = {n: h[n] - alpha / len(p.data) * sum(row[n] - w[n] for row in rows) for n in w}
        average = mean(rows, p.shares(cohort))
        w = {n: average[n] - h[n] / alpha for n in w}
    return w, h, remembered


def feddc(p: Problem, alpha: float) -> tuple[Weights, Weights, list[Weights], list[Weights]]:
    """Weights, the server's D, every client's drift h_i and last update D_i."""
    w, clients = p.initial, len(p.data)
    zero = {name: torch.zeros_like(value) for name, value in w.items()}
    common, drift, update = zero, [zero for _ in p.data], [zero for _ in p.data]
    samples = [len(y) for _, y in p.data]
    for t, cohort in p.rounds:
        rows, changes = [], []
        for k in cohort:
            size = samples[k] * clients / sum(samples)  # n~_i
            center = {n: w[n] - drift[k][n] for n in w}
            slope = {n: common[n] / size - update[k][n] for n in w}
            row = p.local(w, t, k, bent(alpha / size, center, slope))
            scale = p.rate(t) * p.effective(p.steps(k))
            new = {n: update[k][n] - common[n] / size + (w[n] - row[n]) / scale for n in w}
            changes.append({n: size * (new[n] - update[k][n]) for n in w})
            drift[k] = {n: drift[k][n] + row[n] - w[n] for n in w}
            update[k] = new
            rows.append(row)
        common = {n: common[n] + sum(change[n] for change in changes) / clients for n in w}
        average = mean(rows, p.shares(cohort))
        w = {n: average[n] + sum(h[n] for h in drift) / clients for n in w}
    return w, common, drift, update


def fedsol(
    p: Problem,
    rho: float,
    t: float = 3.0,
    adaptive: bool = False,
    base: Loss = cross_entropy,
    said: Said = logits,
    names: Sequence[str] | None = None,
) -> Weights:
    """The base loss's gradient at w + rho g_p / ||g_p||, with g_p the gradient of the divergence from w_g."""

    def elsewhere(w_g: Weights) -> Loss:
        def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
            moved = names or list(w)
            here = {n: value.detach().requires_grad_(n in moved) for n, value in w.items()}
            found = torch.autograd.grad(divergence(said(w_g, x), said(here, x), t), [here[n] for n in moved])
            norm = sum(float(g.square().sum()) for g in found) ** 0.5
            there = dict(w)
            for n, g in zip(moved, found, strict=True):
                step = rho * g / norm if norm > 1e-12 else torch.zeros_like(g)  # zero but for rounding
                if adaptive:
                    away = (w[n].detach() - w_g[n]).abs()
                    step = step * away / away.square().sum(0, keepdim=True).sqrt().clamp(min=1e-12)
                there[n] = w[n] + step
            return base(there, x, y)

        return loss

    return fedavg(p, elsewhere, names, teaching=True)
