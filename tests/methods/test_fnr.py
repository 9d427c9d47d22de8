"""FNR-FL: a second act for the weakest clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from reference import Extra, Problem, Weights, cross_entropy, features, flat, mean, read
from tiny import MODEL_BYTES, agree, checkpoint, gap, memories, problem, train

import fedloom as fl
from fedloom.rng import torch_generator

FIELDS = {"momentum": 0.0, "weight_decay": 0.0, "rounds": 2, "fraction": 0.8, "epochs": 2, "lr": 0.2}
Pull = Callable[[int, str, torch.Tensor], torch.Tensor]  # client, tensor's name and value -> what joins its gradient


@dataclass(frozen=True)
class Setting:
    share: float = 0.5
    epochs: int = 3
    strength: float = 1.0
    bounded: bool = True

    def __str__(self) -> str:
        form = "" if self.bounded else ", bounded=false"
        return f"fnr(share={self.share}, epochs={self.epochs}, strength={self.strength}{form})"


def two_steps(
    p: Problem, w: Weights, t: int, cohort: list[int], of: Setting, pull: Pull | None = None
) -> tuple[dict[int, Weights], list[int]]:
    """Private data, written out: train, measure, select, train the selected on. The uploads, and who was selected."""

    def extra(k: int) -> Extra | None:
        return None if pull is None else lambda name, value: pull(k, name, value)

    rows = {k: p.local(w, t, k, cross_entropy, extra=extra(k)) for k in cohort}
    accuracy = {}
    for k, row in rows.items():
        x, y = p.data[k]
        logits = features(row, x) @ row["head.weight"].T + row["head.bias"]
        accuracy[k] = float((logits.argmax(1) == y).double().mean())
    weakest = sorted(sorted(cohort, key=lambda k: (accuracy[k], k))[: int(of.share * len(cohort))])
    target = {}
    for label in range(10):
        known = []
        for k in cohort:
            x, y = p.data[k]
            if k not in weakest and bool((y == label).any()):
                known.append(float(features(rows[k], x[y == label]).square().sum(1).sqrt().mean()))
        if known:
            target[label] = sum(known) / len(known)

    def loss(w: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = cross_entropy(w, x, y)
        for label, norm in target.items():
            mine = y == label
            if bool(mine.any()):
                m = features(w, x[mine]).square().sum(1).sqrt().mean()
                larger = m if of.bounded and float(m.detach()) > norm else norm
                total = total + of.strength * mine.double().mean() * ((m - norm) / larger) ** 2
        return total

    for k in weakest:
        draws = torch_generator(p.recipe["seed"], "act", t, k)
        rows[k] = p.local(rows[k], t, k, loss, batches=p.batches(k, of.epochs, draws), extra=extra(k))
    return rows, weakest


def distances(p: Problem, cohort: list[int], weakest: list[int], of: Setting) -> dict[int, float]:
    """How far a constant gradient of one carries each client: its second step begins with empty momentum buffers."""
    epoch = {k: p.steps(k) // p.recipe["epochs"] for k in cohort}
    return {k: p.effective(p.steps(k)) + p.effective(of.epochs * epoch[k] * (k in weakest)) for k in cohort}


def fnr(p: Problem, of: Setting) -> Weights:
    w = p.initial
    for t, cohort in p.rounds:
        rows, _ = two_steps(p, w, t, cohort, of)
        w = mean([rows[k] for k in cohort], p.shares(cohort))
    return w


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("strength", [0.0, 1.0, 5.0])
def test_the_weakest_train_on_towards_the_norms_of_the_others(strength: float, bounded: bool) -> None:
    of = Setting(strength=strength, bounded=bounded)
    run = train(str(of), workers=2, **FIELDS)
    agree(run, fnr(problem(run), of))


def test_the_bounded_form_is_another_one() -> None:
    assert gap(train("fnr(strength=5)", **FIELDS), train("fnr(strength=5, bounded=false)", **FIELDS)) > 1e-4


# sums: what other parts compute at the end of training is computed from what a client finally uploads

MOMENTUM = {**FIELDS, "momentum": 0.9, "weight_decay": 0.001, "lr": 0.05, "batch": 64, "rounds": 3, "fraction": 0.8}


def test_beside_nova_a_second_step_counts_from_empty_momentum_buffers() -> None:
    of = Setting(epochs=2)
    run = train(f"{of} + nova", workers=2, **MOMENTUM)
    p = problem(run)
    w = p.initial
    for t, cohort in p.rounds:
        rows, weakest = two_steps(p, w, t, cohort, of)
        a, shares = distances(p, cohort, weakest, of), dict(zip(cohort, p.shares(cohort), strict=True))
        tau = sum(shares[k] * a[k] for k in cohort)
        w = {n: w[n] + tau * sum(shares[k] * (rows[k][n] - w[n]) / a[k] for k in cohort) for n in w}
    agree(run, w)


def test_beside_scaffold_controls_come_from_the_weights_that_are_averaged() -> None:
    of = Setting(epochs=2)
    run = train(f"{of} + scaffold", workers=2, **MOMENTUM)
    p = problem(run)
    w = p.initial
    zero = {name: torch.zeros_like(value) for name, value in w.items()}
    c, c_i = zero, [zero for _ in p.data]
    for t, cohort in p.rounds:
        rows, weakest = two_steps(p, w, t, cohort, of, lambda k, name, _, c=c: c[name] - c_i[k][name])
        a = distances(p, cohort, weakest, of)
        new = {k: {n: c_i[k][n] - c[n] + (w[n] - rows[k][n]) / (p.rate(t) * a[k]) for n in w} for k in cohort}
        c = {n: c[n] + sum(new[k][n] - c_i[k][n] for k in cohort) / len(p.data) for n in w}
        for k in cohort:
            c_i[k] = new[k]
        w = mean([rows[k] for k in cohort], p.shares(cohort))
    agree(run, w)
    torch.testing.assert_close(checkpoint(run)["server.scaffold.control"].double(), flat(c), rtol=0, atol=1e-5)
    for k, tensors in memories(run).items():
        torch.testing.assert_close(tensors["scaffold.control"].double(), flat(c_i[k]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("fields", [FIELDS, MOMENTUM], ids=["plain", "momentum"])
def test_beside_feddyn_the_clients_memory_moves_with_the_servers(fields: dict[str, Any]) -> None:
    of, alpha = Setting(epochs=2), 0.1
    run = train(f"{of} + feddyn(alpha={alpha})", workers=2, **{**fields, "lr": 0.05})
    p = problem(run)
    w = p.initial
    zero = {name: torch.zeros_like(value) for name, value in w.items()}
    h, bent = zero, [zero for _ in p.data]
    for t, cohort in p.rounds:
        rows, _ = two_steps(p, w, t, cohort, of, lambda k, name, value, w=w: alpha * (value - w[name]) - bent[k][name])
        for k in cohort:
            bent[k] = {n: bent[k][n] - alpha * (rows[k][n] - w[n]) for n in w}
        h = {n: h[n] - alpha / len(p.data) * sum(rows[k][n] - w[n] for k in cohort) for n in w}
        average = mean([rows[k] for k in cohort], p.shares(cohort))
        w = {n: average[n] - h[n] / alpha for n in w}
    agree(run, w)
    for k, tensors in memories(run).items():
        torch.testing.assert_close(tensors["feddyn.gradient"].double(), flat(bent[k]), rtol=0, atol=1e-5)


def test_beside_moon_the_previous_model_is_the_one_that_was_uploaded_last() -> None:
    run = train("fnr(share=1) + moon", clients=1, fraction=1.0, split="iid", rounds=1)
    final = read(run.path / "final.safetensors")
    torch.testing.assert_close(memories(run)[0]["moon.previous"].double(), flat(final), rtol=0, atol=1e-7)


def test_beside_ditto_the_clients_own_model_is_trained_once_a_round() -> None:
    plain, both = (train(f"{text}ditto", rounds=1, fraction=1.0) for text in ("", "fnr(share=1) + "))
    for k, tensors in memories(plain).items():
        assert torch.equal(memories(both)[k]["ditto.own"], tensors["ditto.own"])


def test_the_regularizer_is_felt() -> None:
    assert gap(train("fnr(strength=5)", **FIELDS), train("fnr(strength=0)", **FIELDS)) > 1e-3


def test_with_strength_0_it_is_fedavg_with_more_epochs_for_the_weakest() -> None:
    """All clients are chosen, so all of them train for more epochs; a full batch needs no shuffling."""
    assert gap(train("fnr(share=1, strength=0, epochs=3)", **FIELDS), train("fedavg", **{**FIELDS, "epochs": 5})) < 1e-6


def test_nobody_is_chosen_from_a_share_that_is_too_small() -> None:
    assert train("fnr(share=0.1)", **FIELDS).summary["digest"] == train("fedavg", **FIELDS).summary["digest"]


def test_a_second_act_is_paid_for() -> None:
    run = train("fnr(share=0.5)", **FIELDS)
    extras, cohort = 4 * 21, 4
    for line in run.rounds:
        assert line["bytes_down"] == cohort * MODEL_BYTES + 2 * 4 * 10
        assert line["bytes_up"] == (cohort + 2) * (MODEL_BYTES + extras)


def test_as_published_is_extra_epochs_on_held_back_images_whatever_the_strength() -> None:
    fields = {**FIELDS, "data": {"name": "digits", "validation": 0.1}}
    runs = [train(f"fnr(mode=as_published, strength={s})", **fields) for s in (0, 1, 100)]
    assert len({run.summary["digest"] for run in runs}) == 1
    honest = train("fnr(mode=held, strength=1)", **fields)
    assert gap(honest, runs[0]) > 1e-4
    assert gap(train("fnr(strength=1)", **fields), honest) > 1e-4


def test_held_back_images_must_exist() -> None:
    with pytest.raises(fl.FedloomError, match=r"data\.validation"):
        train("fnr(mode=as_published)", **FIELDS)
