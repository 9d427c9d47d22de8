"""FNR-FL: a second act for the weakest clients."""

from __future__ import annotations

import pytest
import torch
from reference import Problem, Weights, cross_entropy, features, mean
from tiny import MODEL_BYTES, agree, gap, problem, train

import fedloom as fl
from fedloom.keys import torch_generator

FIELDS = {"momentum": 0.0, "weight_decay": 0.0, "rounds": 2, "fraction": 0.8, "epochs": 2, "lr": 0.2}


def fnr(p: Problem, share: float, epochs: int, strength: float) -> Weights:
    """Private data, written out: train, measure, select, train the selected on."""
    w = p.initial
    for t, cohort in p.rounds:
        rows = {k: p.local(w, t, k, cross_entropy) for k in cohort}
        accuracy = {}
        for k, row in rows.items():
            x, y = p.data[k]
            logits = features(row, x) @ row["head.weight"].T + row["head.bias"]
            accuracy[k] = float((logits.argmax(1) == y).double().mean())
        weakest = sorted(sorted(cohort, key=lambda k: (accuracy[k], k))[: int(share * len(cohort))])
        target = {}
        for label in range(10):
            known = []
            for k in cohort:
                x, y = p.data[k]
                if k not in weakest and bool((y == label).any()):
                    known.append(float(features(rows[k], x[y == label]).square().sum(1).sqrt().mean()))
            if known:
                target[label] = sum(known) / len(known)

        def loss(w: Weights, x: torch.Tensor, y: torch.Tensor, target: dict[int, float] = target) -> torch.Tensor:
            total = cross_entropy(w, x, y)
            for label, norm in target.items():
                mine = y == label
                if bool(mine.any()):
                    m = features(w, x[mine]).square().sum(1).sqrt().mean()
                    total = total + strength * mine.double().mean() * (m / norm - 1) ** 2
            return total

        for k in weakest:
            draws = torch_generator(p.recipe["seed"], "act", t, k)
            rows[k] = p.local(rows[k], t, k, loss, batches=p.batches(k, epochs, draws))
        w = mean([rows[k] for k in cohort], p.shares(cohort))
    return w


@pytest.mark.parametrize("strength", [0.0, 1.0, 5.0])
def test_the_weakest_train_on_towards_the_norms_of_the_others(strength: float) -> None:
    run = train(f"fnr(share=0.5, epochs=3, strength={strength})", lanes=2, **FIELDS)
    agree(run, fnr(problem(run), 0.5, 3, strength))


def test_the_regulariser_is_felt() -> None:
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
