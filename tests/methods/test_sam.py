"""FedSAM, MoFedSAM, FedSpeed and FedLESAM: gradients at perturbed weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from reference import BODY, Loss, Problem, Weights, cross_entropy, fedavg, flat, gradients, mean, square
from reference_personal import NORMED
from reference_regularizers import squared_distance
from tiny import MODEL_BYTES, agree, gap, memories, problem, traffic, train
from torch import Tensor

from fedloom import FedloomError, method

Climb = Callable[[Weights, Tensor, Tensor], Weights]  # weights and a batch -> the perturbation


def at(climb: Climb, mix: float = 1.0, base: Loss = cross_entropy) -> Loss:
    """A loss whose gradient is that of the base at w + e, or a mix of both."""

    def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        e = climb({n: v.detach() for n, v in w.items()}, x, y)
        ahead = base({n: v + e[n] if n in e else v for n, v in w.items()}, x, y)
        return mix * ahead + (1 - mix) * base(w, x, y)

    return loss


def sharp(rho: float, base: Loss = cross_entropy, names: Sequence[str] | None = None) -> Climb:
    def climb(w: Weights, x: Tensor, y: Tensor) -> Weights:
        g = gradients(base, w, x, y, names or list(w))
        return {n: rho * v / square(g) ** 0.5 for n, v in g.items()}

    return climb


def adaptive(rho: float, eta: float) -> Climb:
    def climb(w: Weights, x: Tensor, y: Tensor) -> Weights:
        g = gradients(cross_entropy, w, x, y, list(w))
        t = {n: v.abs() + eta if n.endswith("weight") else torch.ones_like(v) for n, v in w.items()}
        norm = square({n: t[n] * g[n] for n in g}) ** 0.5
        return {n: rho * t[n] ** 2 * g[n] / norm for n in g}

    return climb


@pytest.mark.parametrize(("rho", "mix", "batch"), [(0.1, 1.0, "full"), (0.5, 1.0, 64), (0.5, 0.6, 64)])
def test_the_gradient_is_taken_uphill(rho: float, mix: float, batch: int | str) -> None:
    run = train(f"sam(rho={rho}, mix={mix})", batch=batch, lr=0.05, workers=2)
    agree(run, fedavg(problem(run), at(sharp(rho), mix)))
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}


def test_asam_scales_the_perturbation_by_the_weights() -> None:
    run = train("sam(rho=0.7, adaptive=true)", lr=0.05)
    agree(run, fedavg(problem(run), at(adaptive(0.7, 0.2))))


def test_with_babu_only_the_body_is_perturbed() -> None:
    run = train("fedsam + babu", lr=0.05)
    agree(run, fedavg(problem(run), at(sharp(0.1, names=BODY)), BODY))


def test_fedspeed_adds_the_clients_drift_and_the_server_its_mean_over_all_clients() -> None:
    assert str(method("fedspeed")) == "sam + feddyn(alpha=0.1)"
    run = train("fedspeed(rho=0.2)", lr=0.05, rounds=4)
    p, strength = problem(run), 0.1
    w = p.initial
    zero = {n: torch.zeros_like(v) for n, v in w.items()}
    h = [zero for _ in p.data]
    for t, cohort in p.rounds:
        rows = []
        for k in cohort:
            extra = lambda n, v, k=k, w=w: strength * (v - w[n] + h[k][n])  # noqa: E731
            rows.append(p.local(w, t, k, at(sharp(0.2)), extra=extra))
        for k, row in zip(cohort, rows, strict=True):
            h[k] = {n: h[k][n] + row[n] - w[n] for n in w}
        average, drift = mean(rows, p.shares(cohort)), mean(h, [1 / len(h)] * len(h))
        w = {n: average[n] + drift[n] for n in w}
    agree(run, w)
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}


def test_fedspeeds_first_round_of_all_clients_goes_twice_as_far() -> None:
    run = train("fedspeed", rounds=1, fraction=1.0, weighting="uniform", lr=0.05)
    p = problem(run)
    near = lambda w, x, y: 0.05 * squared_distance(w, p.initial)  # noqa: E731
    climb = at(sharp(0.1))
    w = fedavg(p, lambda v, x, y: climb(v, x, y) + near(v, x, y))
    agree(run, {n: 2 * w[n] - p.initial[n] for n in w})


def fedlesam(p: Problem, rho: float) -> tuple[Weights, dict[int, Weights]]:
    w, old = p.initial, dict[int, Weights]()
    for t, cohort in p.rounds:
        rows = []
        for k in cohort:
            back = {n: old[k][n] - w[n] for n in w} if k in old else {}
            e = {n: rho * v / square(back) ** 0.5 for n, v in back.items()}
            assert not e or square(e) ** 0.5 == pytest.approx(rho)
            rows.append(p.local(w, t, k, at(lambda *_, e=e: e)))
            old[k] = w
        w = mean(rows, p.shares(cohort))
    return w, old


@pytest.mark.parametrize(("rho", "batch"), [(0.1, "full"), (1.0, 64)])
def test_fedlesam_perturbs_back_along_the_global_movement_since_the_clients_last_round(
    rho: float, batch: int | str
) -> None:
    run = train(f"fedlesam(rho={rho})", batch=batch, rounds=4, lr=0.05, workers=2)
    w, old = fedlesam(problem(run), rho)
    agree(run, w)
    kept = memories(run)
    assert set(kept) == set(old)
    for k, tensors in kept.items():
        torch.testing.assert_close(tensors["fedlesam.old"].double(), flat(old[k]), rtol=0, atol=1e-5)
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}


def test_without_a_perturbation_they_are_their_bases() -> None:
    plain = train("fedavg").summary["digest"]
    assert train("sam(rho=0)").summary["digest"] == plain == train("fedlesam(rho=0)").summary["digest"]
    assert gap(train("mofedsam(rho=0)", lr=0.05), train("fedcm", lr=0.05)) == 0
    assert gap(train("fedspeed(rho=0)", lr=0.05), train("feddyn(alpha=0.1)", lr=0.05)) == 0
    assert train("fedlesam", rounds=1).summary["digest"] == train("fedavg", rounds=1).summary["digest"]


def test_mofedsam_mixes_the_gradient_at_perturbed_weights() -> None:
    assert str(method("mofedsam")) == "sam + fedcm"
    run = train("mofedsam(alpha=0.4)", lr=0.05, momentum=0.0)
    p = problem(run)
    w = p.initial
    step = {n: torch.zeros_like(v) for n, v in w.items()}
    ahead = at(sharp(0.1))
    for t, cohort in p.rounds:
        mixed = lambda n, _, step=step: 0.6 * step[n]  # noqa: E731
        rows = [p.local(w, t, k, lambda v, x, y: 0.4 * ahead(v, x, y), extra=mixed) for k in cohort]
        new = mean(rows, p.shares(cohort))
        length = sum(share * p.steps(k) for share, k in zip(p.shares(cohort), cohort, strict=True))
        step = {n: (w[n] - new[n]) / (p.rate(t) * length) for n in w}
        w = new
    agree(run, w)


def test_running_statistics_are_gathered_once_a_step() -> None:
    """At w by sam; at perturbed weights, the only pass, by fedlesam."""
    Path("normed.py").write_text(NORMED)
    fields = {"model": "normed.py:normed", "lr": 0.05, "rounds": 1, "epochs": 1}  # one step, from the same weights
    plain, sam = train("fedavg", **fields), train("sam", **fields)
    names = [name for name in plain.weights if "running" in name]
    assert names and all(torch.equal(plain.weights[n], sam.weights[n]) for n in names)
    first, second = (train("fedlesam", **{**fields, "rounds": rounds, "fraction": 1.0}) for rounds in (1, 2))
    assert all(not torch.equal(first.weights[n], second.weights[n]) for n in names)


def test_two_ways_to_compute_gradients_are_refused_by_name() -> None:
    with pytest.raises(
        FedloomError, match="method: sam and fedlesam both decide how the gradient is computed; keep one"
    ):
        method("sam + fedlesam")


@pytest.mark.parametrize("text", ["mofedsam", "fedlesam(rho=1) + scaffold"])
def test_the_number_of_workers_changes_no_bit(text: str) -> None:
    one, three = (train(text, lr=0.05, workers=workers).summary["digest"] for workers in (1, 3))
    assert one == three
