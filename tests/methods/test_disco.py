"""FedDisco, the user of `weigh_uploads`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reference import Problem, Weights, cross_entropy, mean, normalized_cross_entropy
from reference_personal import NORMED
from tiny import MODEL_BYTES, agree, gap, problem, traffic, train

import fedloom as fl
from fedloom import FedloomError, method
from fedloom.methods import ServerContext
from fedloom.methods.api.secure_sums import check_sums
from fedloom.methods.disco import Disco


def weights(p: Problem, cohort: Sequence[int], a: float, b: float) -> list[float]:
    d = []
    for k in cohort:
        y = p.data[k][1]
        shares = [float((y == c).double().mean()) for c in range(10)]
        d.append(sum(q * math.log(q / 0.1) for q in shares if q))
    raw = [max(0.0, n - a * d_i / sum(d) + b) for n, d_i in zip(p.shares(cohort), d, strict=True)]
    return [value / sum(raw) for value in raw]


def disco(p: Problem, a: float, b: float, loss: Any = cross_entropy, beta: float = 0.0) -> Weights:
    w = p.initial
    velocity = {n: torch.zeros_like(v) for n, v in w.items()}
    for t, cohort in p.rounds:
        new = mean([p.local(w, t, k, loss) for k in cohort], weights(p, cohort, a, b))
        velocity = {n: beta * velocity[n] + new[n] - w[n] for n in w}
        w = {n: w[n] + velocity[n] for n in w}
    return w


@pytest.mark.parametrize(
    ("a", "b", "fields"),
    [
        (0.5, 0.1, {}),
        (1.0, 0.0, {"batch": 64}),
        (0.3, 0.2, {"weighting": "uniform"}),
        (0.5, 0.1, {"split": "shards:4"}),
    ],
)
def test_uploads_are_weighted_by_samples_and_label_discrepancy(a: float, b: float, fields: dict[str, Any]) -> None:
    run = train(f"disco(a={a}, b={b})", workers=2, **fields)
    agree(run, disco(problem(run), a, b))
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES + 4)}


def test_any_other_part_averages_with_these_weights() -> None:
    run = train("feddisco + fn + fedavgm(beta=0.5)", lr=0.2)
    agree(run, disco(problem(run), 0.5, 0.1, normalized_cross_entropy, beta=0.5))
    assert gap(train("disco + nova", batch=64), train("nova", batch=64)) > 1e-4
    with pytest.raises(FedloomError, match="disco decides how much each upload counts, and median counts all alike"):
        train("disco + median")


def test_running_statistics_are_averaged_with_the_same_weights() -> None:
    Path("normed.py").write_text(NORMED)
    fields = {"model": "normed.py:normed", "rounds": 1, "fraction": 1.0}
    plain, run = train("fedavg", **fields), train("disco(a=1, b=0)", **fields)
    names = [name for name in plain.weights if "running" in name]
    assert names and all(not torch.equal(plain.weights[n], run.weights[n]) for n in names)


def test_limits() -> None:
    assert gap(train("disco(a=0, b=0)"), train("fedavg")) < 1e-6
    assert gap(train("disco(b=1e6)"), train("fedavg", weighting="uniform")) < 1e-5


def weigh(part: Disco, shares: list[float], values: list[float]) -> list[float]:
    server: Any = SimpleNamespace(
        task=SimpleNamespace(classes=10), extras=lambda name: [torch.tensor([value]) for value in values]
    )
    return list(part.weigh_uploads(shares, server))


def test_reported_discrepancies_are_limited_and_may_all_be_zero() -> None:
    assert weigh(Disco(), [0.5, 0.5], [0.0, 0.0]) == [0.6, 0.6]
    assert weigh(Disco(b=0), [0.5, 0.5], [1e9, -1e9]) == pytest.approx([0.0, 0.5])
    assert weigh(Disco(a=10, b=0), [0.5, 0.5], [1.0, 1.0]) == [0.0, 0.0]


class Weightless(fl.Part):
    """Weighs all uploads by one number."""

    value: float = 0.0

    def weigh_uploads(self, shares: Sequence[float], server: ServerContext) -> Sequence[float]:
        return [self.value] * len(shares)


def test_weights_of_zero_leave_the_recipes_shares_and_negative_ones_are_an_error() -> None:
    assert gap(train("weightless"), train("fedavg")) == 0
    assert gap(train("weightless(value=3)"), train("fedavg", weighting="uniform")) < 1e-6
    with pytest.raises(FedloomError, match="method: weightless weighs 3 uploads by"):
        train("weightless(value=-1)")
    capped = train("disco(a=1, b=0)", fraction=1.0, rounds=1, deploy={"max_share": 0.2})
    assert gap(capped, train("fedavg", fraction=1.0, rounds=1, weighting="uniform")) < 1e-6


def test_refusals() -> None:
    with pytest.raises(FedloomError, match="method: disco and weightless both decide how much each upload counts"):
        method("disco + weightless")
    with pytest.raises(FedloomError, match="disco acts on what clients share, and with local they share nothing"):
        method("disco + local")
    with pytest.raises(FedloomError, match=r"method: disco .*dp"):
        method("disco + dp")
    with pytest.raises(FedloomError, match="disco weighs uploads in its own way"):
        check_sums(method("disco"), "samples", {})


def test_the_number_of_workers_changes_no_bit() -> None:
    assert train("disco", workers=1).summary["digest"] == train("disco", workers=3).summary["digest"]
