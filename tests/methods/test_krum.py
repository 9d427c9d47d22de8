"""Krum, multi-Krum, the geometric median (RFA) and centered clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from reference import Problem, Weights, cross_entropy, flat
from tiny import MODEL_BYTES, agree, checkpoint, distance, gap, problem, traffic, train

import fedloom as fl
from fedloom import FedloomError, method
from fedloom.methods import ClientContext
from fedloom.methods.api.secure_sums import check_sums
from fedloom.methods.cclip import CClip
from fedloom.methods.krum import Krum
from fedloom.methods.rfa import RFA

Row = npt.NDArray[np.float64]
Rule = Callable[[Row, list[float]], Row]  # (n, d) updates and the clients' shares -> the aggregate

FIELDS: dict[str, Any] = {"clients": 7, "fraction": 0.9, "lr": 0.05, "rounds": 2}  # six clients in a round


class KrumPoison(fl.Part):
    """The client with so many samples sends nonsense."""

    samples: int

    def after_training(self, client: ClientContext) -> None:
        if client.samples == self.samples:
            client.weights.add_(1e6)


def federated(p: Problem, rule: Rule, beta: float = 0.0, bad: int = -1) -> Weights:
    """Local training, the rule on updates, then a server step with momentum."""
    w, names = p.initial, list(p.initial)
    sizes = np.cumsum([w[n].numel() for n in names])[:-1]
    velocity = np.zeros(sum(v.numel() for v in w.values()))
    for t, cohort in p.rounds:
        before = flat(w, names).numpy()
        rows = np.stack([flat(p.local(w, t, k, cross_entropy), names).numpy() + 1e6 * (k == bad) for k in cohort])
        velocity = beta * velocity + rule(rows - before, p.shares(cohort))
        pieces = np.split(before + velocity, sizes)
        w = {n: torch.from_numpy(piece).view(w[n].shape) for n, piece in zip(names, pieces, strict=True)}
    return w


def krum(f: int, keep: int | None) -> Rule:
    def rule(updates: Row, shares: list[float]) -> Row:
        apart = np.array([[float(((a - b) ** 2).sum()) for b in updates] for a in updates])
        near = len(updates) - f - 2
        scores = [sum(sorted(np.delete(row, i))[:near]) for i, row in enumerate(apart)]
        best = np.argsort(scores)[: keep or near]
        return np.asarray(updates[best].mean(0))

    return rule


def weiszfeld(steps: int, nu: float) -> Rule:
    def rule(updates: Row, shares: list[float]) -> Row:
        z = np.average(updates, axis=0, weights=shares)
        for _ in range(steps):
            pull = [p / max(nu, float(np.linalg.norm(z - x))) for p, x in zip(shares, updates, strict=True)]
            z = np.average(updates, axis=0, weights=pull)
        return np.asarray(z)

    return rule


def centered(radius: float, passes: int) -> Rule:
    """Also keeps the last aggregate."""
    last: list[Row] = []

    def rule(updates: Row, shares: list[float]) -> Row:
        v = last[-1] if last else np.zeros(updates.shape[1])
        for _ in range(passes):
            v = v + np.mean([(x - v) * min(1.0, radius / float(np.linalg.norm(x - v))) for x in updates], axis=0)
        last.append(v)
        return v

    return rule


@pytest.mark.parametrize(("text", "f", "keep"), [("krum", 1, 1), ("krum(keep=3)", 1, 3), ("multikrum", 1, None)])
def test_the_upload_that_is_nearest_to_most_others_wins(text: str, f: int, keep: int | None) -> None:
    run = train(text, **FIELDS, workers=2)
    agree(run, federated(problem(run), krum(f, keep)))
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}


def test_a_server_step_starts_from_the_chosen_upload() -> None:
    run = train("krum + fedavgm(beta=0.5)", **FIELDS)
    agree(run, federated(problem(run), krum(1, 1), beta=0.5))


@pytest.mark.parametrize(("steps", "nu"), [(4, 1e-5), (2, 0.5)])
def test_rfa_is_weiszfelds_iteration_from_the_weighted_mean(steps: int, nu: float) -> None:
    run = train(f"rfa(steps={steps}, nu={nu})", **FIELDS, workers=2)
    agree(run, federated(problem(run), weiszfeld(steps, nu)))


@pytest.mark.parametrize("passes", [1, 3])
def test_centered_clipping_bounds_each_pull_on_the_last_aggregate(passes: int) -> None:
    run = train(f"cclip(radius=0.3, passes={passes})", **FIELDS, workers=2)
    rule = centered(0.3, passes)
    agree(run, federated(problem(run), rule))
    assert gap(run, train("fedavg", **FIELDS, weighting="uniform")) > 1e-3  # something was clipped
    assert float(checkpoint(run)["server.cclip.center"].norm()) > 1e-3


def test_limits() -> None:
    uniform = train("fedavg", **FIELDS, weighting="uniform")
    assert gap(train("cclip(radius=1e9)", **FIELDS), uniform) < 1e-6
    assert gap(train("rfa(steps=0)", **FIELDS), train("fedavg", **FIELDS)) < 1e-6
    assert gap(train("krum(malicious=0, keep=6)", **FIELDS), uniform) < 1e-6


def on(part: fl.Part, values: Sequence[float], center: float = 0.0) -> float:
    """The part's aggregate of uploads of one number, around weights of zero."""
    server: Any = SimpleNamespace(
        weights=torch.zeros(1),
        uploads=[torch.tensor([value]) for value in values],
        shares=[1 / len(values)] * len(values),
        state={"center": torch.tensor([center])},
    )
    server.mean = lambda vectors: sum(vectors) / len(vectors)
    return float(part.aggregate(server))


def test_by_hand() -> None:
    assert on(Krum(), [0, 0.1, 0.2, 0.3, 100]) == pytest.approx(0.1)
    assert on(Krum(keep=2), [0, 0.1, 0.2, 0.3, 100]) == pytest.approx(0.15)
    assert on(RFA(steps=200), [0, 1, 2, 3, 100]) == pytest.approx(2, abs=0.05)  # collinear and odd: the median
    assert on(CClip(radius=0.5), [0, 0, 0, 0, 1e6]) == pytest.approx(0.1)  # radius / n
    assert on(CClip(radius=0.5), [3, 3], center=2.0) == pytest.approx(2.5)


def test_with_few_uploads_malicious_and_keep_are_lowered() -> None:
    assert on(Krum(), [5.0]) == 5 and on(Krum(keep=3), [5.0, 6.0]) == 5.5
    assert on(Krum(malicious=2, keep=4), [0.0, 0.1, 50.0]) == pytest.approx(50.1 / 3)  # f = 0: nobody is left out
    assert on(Krum(malicious=2, keep=4), [0.0, 0.1, 0.2, 0.3, 50.0]) == pytest.approx(0.15)  # f = 1
    assert on(Krum(malicious=1, keep=None), [0.0, 0.1, 50.0]) == pytest.approx(0.0)


def test_one_bad_client_is_not_chosen_and_moves_the_others_little() -> None:
    fields: dict[str, Any] = {**FIELDS, "fraction": 1.0, "rounds": 1}
    sizes = [len(y) for _, y in problem(train("fedavg", **fields)).data]
    bad = next(k for k in range(7) if sizes.count(sizes[k]) == 1)
    poison = f" + krumpoison(samples={sizes[bad]})"
    run = train("krum" + poison, **fields)
    agree(run, federated(problem(run), krum(1, 1), bad=bad))
    assert distance(train("cclip(radius=0.5)" + poison, **fields)) < 0.5
    assert distance(train("rfa(steps=8)" + poison, **fields)) < 10  # the mean moves by more than 1e4
    assert run.summary["lost"] == 0


def test_refusals() -> None:
    with pytest.raises(
        FedloomError, match=r"method: krum: with malicious=1 it needs 5 clients or more in a round, and"
    ):
        train("krum")
    with pytest.raises(FedloomError, match="method: krum: keep=6 is more than the 5 honest clients of a round"):
        train("krum(keep=6)", **FIELDS)
    with pytest.raises(FedloomError, match="method: krum and rfa both decide how uploads are aggregated; keep one"):
        method("krum + rfa")
    for name in ("krum", "rfa", "cclip"):
        with pytest.raises(FedloomError, match=f"{name} aggregates uploads in its own way"):
            check_sums(method(name), "samples", {})


@pytest.mark.parametrize("text", ["multikrum", "rfa", "cclip(radius=0.3)"])
def test_the_number_of_workers_changes_no_bit(text: str) -> None:
    assert train(text, **FIELDS).summary["digest"] == train(text, **FIELDS, workers=3).summary["digest"]
