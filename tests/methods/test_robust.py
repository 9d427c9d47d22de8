"""Median, trimmed mean and clipped updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from reference import Problem, Weights, cross_entropy, square
from reference import read as read_weights
from tiny import BODY_BYTES, MODEL_BYTES, agree, distance, gap, problem, traffic, train

from fedloom import Part, Run
from fedloom.methods import ClientContext
from fedloom.methods.robust import Trimmed


class RobustPoison(Part):
    """The client with so many samples sends nonsense."""

    samples: int
    by: float = 1e6

    def after_training(self, client: ClientContext) -> None:
        if client.samples == self.samples:
            client.weights.add_(self.by)


def combined(
    p: Problem, combine: Callable[[Weights, Sequence[Weights], Sequence[float]], Weights], bad: int = -1
) -> Weights:
    """Local training, then w_g, the clients' weights and their shares -> the new weights."""
    w = p.initial
    for t, cohort in p.rounds:
        rows = [p.local(w, t, k, cross_entropy) for k in cohort]
        rows = [{n: v + 1e6 for n, v in row.items()} if k == bad else row for k, row in zip(cohort, rows, strict=True)]
        w = combine(w, rows, p.shares(cohort))
    return w


def median(w: Weights, rows: Sequence[Weights], shares: Sequence[float]) -> Weights:
    return {n: torch.from_numpy(np.median(np.stack([row[n].numpy() for row in rows]), axis=0)) for n in w}


def trimmed(cut: int) -> Callable[..., Weights]:
    def combine(w: Weights, rows: Sequence[Weights], shares: Sequence[float]) -> Weights:
        ranked = {n: np.sort(np.stack([row[n].numpy() for row in rows]), axis=0) for n in w}
        return {n: torch.from_numpy(r[cut : len(r) - cut].mean(axis=0)) for n, r in ranked.items()}

    return combine


def clipped(largest: float, norms: list[float]) -> Callable[..., Weights]:
    """Also notes the norm of every update."""

    def combine(w: Weights, rows: Sequence[Weights], shares: Sequence[float]) -> Weights:
        new = dict(w)
        for share, row in zip(shares, rows, strict=True):
            norms.append(square({n: row[n] - w[n] for n in w}) ** 0.5)
            new = {n: new[n] + share * min(1.0, largest / norms[-1]) * (row[n] - w[n]) for n in w}
        return new

    return combine


def poisoned(method: str, **fields: Any) -> tuple[Run, Problem, int]:
    """A run of all clients, one of whom sends nonsense; the client is not the largest nor the smallest."""
    sizes = [len(y) for _, y in problem(train("fedavg", rounds=1, fraction=1.0)).data]
    bad = sorted(range(5), key=lambda k: sizes[k])[2]
    assert sizes.count(sizes[bad]) == 1
    run = train(f"{method} + robustpoison(samples={sizes[bad]})", fraction=1.0, **fields)
    return run, problem(run), bad


@pytest.mark.parametrize(("fraction", "batch"), [(0.6, "full"), (0.8, "full"), (0.6, 64)])
def test_the_median_is_taken_by_coordinate_for_odd_and_even_cohorts(fraction: float, batch: int | str) -> None:
    run = train("median", fraction=fraction, batch=batch, workers=2)
    agree(run, combined(problem(run), median))


@pytest.mark.parametrize(("share", "fraction", "cut"), [(0.2, 1.0, 1), (0.4, 1.0, 2), (0.25, 0.8, 1), (0.3, 0.6, 0)])
def test_the_trimmed_mean_leaves_out_the_extremes_of_each_coordinate(share: float, fraction: float, cut: int) -> None:
    run = train(f"trimmed(share={share})", fraction=fraction, workers=2)
    agree(run, combined(problem(run), trimmed(cut)))


def test_an_update_longer_than_allowed_is_shortened_and_others_are_not() -> None:
    norms: list[float] = []
    run = train("clipped(largest=0.88)", workers=2)
    agree(run, combined(problem(run), clipped(0.88, norms)))
    assert min(norms) < 0.87 < 0.89 < max(norms)


@pytest.mark.parametrize("method", ["median", "trimmed(share=0.2)"])
def test_one_bad_client_cannot_move_the_median_or_the_trimmed_mean_beyond_the_others(method: str) -> None:
    run, told, bad = poisoned(method, rounds=1)
    honest = [told.local(told.initial, 1, k, cross_entropy) for k in range(5) if k != bad]
    for name, value in read_weights(run.path / "final.safetensors").items():
        rows = torch.stack([row[name] for row in honest])
        assert (value >= rows.min(0).values - 1e-6).all() and (value <= rows.max(0).values + 1e-6).all()
    agree(run, combined(told, median if method == "median" else trimmed(1), bad))
    assert distance(poisoned("fedavg", rounds=1, deploy={"max_distance": None})[0]) > 1e4
    assert poisoned("fedavg", rounds=1)[0].summary["lost"] == 1 and run.summary["lost"] == 0


def test_one_bad_client_cannot_move_the_clipped_average_beyond_its_share_of_the_largest() -> None:
    run, told, bad = poisoned("clipped(largest=0.5)", rounds=1)
    norms: list[float] = []
    agree(run, combined(told, clipped(0.5, norms), bad))
    assert max(norms) > 1e6
    moved = square({n: v - told.initial[n] for n, v in read_weights(run.path / "final.safetensors").items()}) ** 0.5
    assert moved <= 0.5 + 1e-6


def test_nothing_trimmed_is_the_mean_of_clients_whatever_their_samples() -> None:
    plain = train("fedavg", weighting="uniform")
    assert gap(train("trimmed(share=0)"), plain) < 1e-6
    assert gap(train("trimmed(share=0)"), train("fedavg")) > 1e-3


def test_of_one_or_two_clients_the_median_is_the_mean() -> None:
    for fraction in (0.2, 0.4):
        plain = train("fedavg", weighting="uniform", fraction=fraction)
        assert gap(train("median", fraction=fraction), plain) < 1e-6


def test_a_very_large_bound_leaves_fedavg() -> None:
    assert gap(train("clipped(largest=1e9)"), train("fedavg")) < 1e-6


@pytest.mark.parametrize(
    ("share", "count", "cut"), [(0.29, 100, 29), (0.1, 10, 1), (0.1, 9, 0), (0.4999999999, 4, 1), (0.4999999999, 2, 0)]
)
def test_the_share_is_of_the_cohort_and_rounding_takes_nobody_in_or_out(share: float, count: int, cut: int) -> None:
    rows = torch.rand(count, 3)
    server: Any = SimpleNamespace(weights=torch.zeros(3), uploads=rows.unbind())
    expected = rows.sort(0).values[cut : count - cut].mean(0)
    torch.testing.assert_close(Trimmed(share=share).aggregate(server), expected)


@pytest.mark.parametrize("method", ["median", "trimmed", "clipped"])
def test_nothing_more_travels_than_with_fedavg(method: str) -> None:
    assert traffic(train(method)) == {(MODEL_BYTES, MODEL_BYTES)}
    assert traffic(train(f"{method} + babu", rounds=1)) == {(BODY_BYTES, BODY_BYTES)}
