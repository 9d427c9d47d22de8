"""FedCM and FedACG: momentum of the server that clients take part in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from reference import BODY, Problem, Weights, cross_entropy, flat, mean, normalized_cross_entropy
from tiny import BODY_BYTES, MODEL_BYTES, agree, checkpoint, gap, problem, traffic, train

from fedloom import FedloomError, method
from fedloom.methods.api.secure_sums import check_sums

Aggregate = Callable[[list[Weights], list[float]], Weights]


def zero(w: Weights) -> Weights:
    return {n: torch.zeros_like(v) for n, v in w.items()}


def median(rows: list[Weights], _: list[float]) -> Weights:
    return {n: torch.from_numpy(np.median([row[n].numpy() for row in rows], axis=0)) for n in rows[0]}


def fedcm(p: Problem, alpha: float, beta: float = 0.0, aggregate: Aggregate = mean) -> tuple[Weights, Weights]:
    """Weights and the last Delta; the server takes a step with momentum beta."""
    w = p.initial
    delta, velocity = zero(w), zero(w)
    for t, cohort in p.rounds:
        rows = []
        for k in cohort:
            pull = lambda n, _, delta=delta: (1 - alpha) * delta[n]  # noqa: E731
            rows.append(p.local(w, t, k, lambda v, x, y: alpha * cross_entropy(v, x, y), extra=pull))
        new, shares = aggregate(rows, p.shares(cohort)), p.shares(cohort)
        length = sum(share * p.effective(p.steps(k)) for share, k in zip(shares, cohort, strict=True))
        delta = {n: (w[n] - new[n]) / (p.rate(t) * length) for n in w}
        velocity = {n: beta * velocity[n] + new[n] - w[n] for n in w}
        w = {n: w[n] + velocity[n] for n in w}
    return w, delta


@pytest.mark.parametrize(
    ("alpha", "momentum", "batch", "schedule"),
    [(0.1, 0.0, "full", "constant"), (0.5, 0.0, 64, "exp:0.5"), (0.3, 0.9, 64, "constant")],
)
def test_steps_are_mixed_with_the_last_average_gradient(
    alpha: float, momentum: float, batch: int | str, schedule: str
) -> None:
    run = train(f"fedcm(alpha={alpha})", momentum=momentum, batch=batch, schedule=schedule, lr=0.05, workers=2)
    w, delta = fedcm(problem(run), alpha)
    agree(run, w)
    torch.testing.assert_close(checkpoint(run)["server.fedcm.step"].double(), flat(delta), rtol=0, atol=1e-4)
    assert traffic(run) == {(2 * MODEL_BYTES, MODEL_BYTES)}


@pytest.mark.parametrize(
    ("rest", "beta", "aggregate"), [("fedavgm(beta=0.5)", 0.5, mean), ("median", 0.0, median)], ids=["step", "rule"]
)
def test_the_movement_is_that_of_the_aggregate_before_the_servers_step(
    rest: str, beta: float, aggregate: Aggregate
) -> None:
    for text in (f"fedcm(alpha=0.3) + {rest}", f"{rest} + fedcm(alpha=0.3)"):
        run = train(text, lr=0.05, momentum=0.0)
        agree(run, fedcm(problem(run), 0.3, beta, aggregate)[0])


def fedacg(
    p: Problem, lam: float, beta: float, names: Sequence[str] | None = None, loss: object = cross_entropy
) -> tuple[Weights, Weights]:
    """w and m; the two forms of the server's update are the same."""
    w = p.initial
    m = zero(w)
    for t, cohort in p.rounds:
        sent = {n: w[n] + lam * m[n] for n in w}
        pull = lambda n, v, sent=sent: 2 * beta * (v - sent[n])  # noqa: E731
        new = mean([p.local(sent, t, k, loss, names, extra=pull) for k in cohort], p.shares(cohort))  # type: ignore[arg-type]
        m = {n: lam * m[n] + new[n] - sent[n] for n in w}
        torch.testing.assert_close(new, {n: w[n] + m[n] for n in w}, rtol=0, atol=1e-9)
        w = new
    return w, m


@pytest.mark.parametrize(("lam", "beta", "batch"), [(0.85, 0.001, "full"), (0.5, 0.2, 64)])
def test_clients_start_ahead_and_the_mean_is_served(lam: float, beta: float, batch: int | str) -> None:
    run = train(f"fedacg(lambda={lam}, beta={beta})", batch=batch, lr=0.05, workers=2)
    w, m = fedacg(problem(run), lam, beta)
    agree(run, w)
    kept = checkpoint(run)
    torch.testing.assert_close(kept["server.fedacg.momentum"].double(), flat(m), rtol=0, atol=1e-5)
    torch.testing.assert_close(kept["w"].double(), flat({n: w[n] + lam * m[n] for n in w}), rtol=0, atol=1e-5)
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}


def test_sums_of_fedacg() -> None:
    run = train("fedacg + babu", lr=0.05)
    agree(run, fedacg(problem(run), 0.85, 0.001, BODY)[0])
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}
    run = train("fn + fedacg", lr=0.2)
    agree(run, fedacg(problem(run), 0.85, 0.001, loss=normalized_cross_entropy)[0])


def test_limits() -> None:
    plain = train("fedavg", lr=0.05)
    assert train("fedcm(alpha=1)", lr=0.05).summary["digest"] == plain.summary["digest"]
    assert gap(train("fedacg(lambda=0, beta=0)", lr=0.05), plain) < 1e-6
    one, short = (
        train("fedcm(alpha=0.1)", rounds=1, weight_decay=0.0),
        train("fedavg", rounds=1, lr=0.01, weight_decay=0.0),
    )
    assert gap(one, short) < 1e-6  # in the first round steps are ten times shorter
    assert gap(train("fedacg(beta=0.1)", rounds=1), train("prox(mu=0.2)", rounds=1)) < 1e-6


def test_refusals() -> None:
    with pytest.raises(FedloomError, match="method: fedacg and exp both decide"):
        method("fedacg + exp")
    with pytest.raises(FedloomError, match="fedacg and fedavgm both decide what the server does with the aggregate"):
        method("fedacg + fedavgm")
    with pytest.raises(FedloomError, match=r"optimizer.name: fedcm computes the average gradient"):
        train("fedcm", optimizer="adam")
    check_sums(method("fedacg"), "samples", {})
    with pytest.raises(FedloomError, match="fedcm works on the uploads of single clients"):
        check_sums(method("fedcm"), "samples", {})


@pytest.mark.parametrize("text", ["fedcm", "fedacg"])
def test_the_number_of_workers_changes_no_bit(text: str) -> None:
    one, three = (train(text, lr=0.05, workers=workers).summary["digest"] for workers in (1, 3))
    assert one == three
