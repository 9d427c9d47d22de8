"""FedProto."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reference import Problem, Weights, cross_entropy, features, flat
from reference_personal import own_tests
from tiny import checkpoint, distance, memories, problem, traffic, train
from torch import Tensor

import fedloom as fl
from fedloom import FedloomError, method
from fedloom.methods.api.secure_sums import check_sums

FIELDS: dict[str, Any] = {"split": "shards:4", "rounds": 4, "lr": 0.05}


def fedproto(p: Problem, weight: float) -> tuple[list[Weights], dict[int, Tensor]]:
    """Every client's model, and the prototypes by class."""
    own, prototypes = [p.initial for _ in p.data], dict[int, Tensor]()

    def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        f = features(w, x)
        target = torch.stack([prototypes.get(int(c), f[i].detach()) for i, c in enumerate(y)])
        return cross_entropy(w, x, y) + weight * (f - target).square().mean()

    for t, cohort in p.rounds:
        sent: dict[int, list[Tensor]] = {}
        for k in cohort:
            own[k] = p.local(own[k], t, k, loss)
            x, y = p.data[k]
            for c in y.unique().tolist():
                sent.setdefault(c, []).append(features(own[k], x[y == c]).mean(0))
        prototypes.update({c: torch.stack(rows).mean(0) for c, rows in sent.items()})
    return own, prototypes


@pytest.mark.parametrize(("weight", "batch"), [(1.0, "full"), (5.0, 64)])
def test_clients_keep_their_models_near_the_prototypes_of_all(weight: float, batch: int | str) -> None:
    run = train(f"fedproto(weight={weight})", **FIELDS, batch=batch, workers=2)
    own, prototypes = fedproto(problem(run), weight)
    kept = memories(run)
    assert set(kept) == {k for cohort in problem(run).cohorts for k in cohort}
    for k, tensors in kept.items():
        torch.testing.assert_close(tensors["personal"].double(), flat(own[k]), rtol=0, atol=1e-5)
    state = checkpoint(run)
    for c, value in prototypes.items():
        torch.testing.assert_close(state["server.fedproto.prototypes"][c].double(), value, rtol=0, atol=1e-4)
    assert state["server.fedproto.known"].nonzero().flatten().tolist() == sorted(prototypes)
    numbers = 4 * (10 * 64 + 10)
    assert traffic(run) == {(numbers, numbers)}  # no weights
    assert distance(run) == 0 and run.summary["shared"] == 0


def nearest(p: Problem, w: Weights, k: int, prototypes: dict[int, Tensor], x: Tensor) -> list[int]:
    candidates = [c for c in prototypes if (p.data[k][1] == c).any()]
    apart = torch.stack([(features(w, x) - prototypes[c]).square().mean(1) for c in candidates])
    return [candidates[i] for i in apart.argmin(0)]


def test_own_models_classify_by_the_nearest_prototype_among_the_clients_classes() -> None:
    run = train("fedproto", **{**FIELDS, "rounds": 2}, fraction=0.4)
    p = problem(run)
    own, prototypes = fedproto(p, 1.0)
    assert len({k for cohort in p.cohorts for k in cohort}) < 5  # some never took part
    expected = []
    for k, (x, y) in enumerate(own_tests(p)):
        if not any((p.data[k][1] == c).any() for c in prototypes):
            continue
        guesses = nearest(p, own[k], k, prototypes, x)
        expected.append(float((torch.tensor(guesses) == y).double().mean()))
    assert len(expected) == 5
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(expected, abs=1e-9)
    assert fl.personalize(run, epochs=0).accuracy == [run.clients[-1]["personal_accuracy"]]


def test_without_weight_it_is_training_alone_and_so_is_the_first_round() -> None:
    alone = memories(train("local", **FIELDS))
    for k, tensors in memories(train("fedproto(weight=0)", **FIELDS)).items():
        torch.testing.assert_close(tensors["personal"], alone[k]["personal"], rtol=0, atol=1e-6)
    fields = {**FIELDS, "rounds": 1}
    alone = memories(train("local", **fields))
    for k, tensors in memories(train("fedproto", **fields)).items():
        torch.testing.assert_close(tensors["personal"], alone[k]["personal"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fedproto + fn", "fedproto: a client's own model reads features by prototypes in place of a linear head"),
        ("fedproto + local", "fedproto and local both decide what happens to the"),
        ("fedproto + scaffold", "scaffold acts on what clients share, and with fedproto they share nothing; keep one"),
        ("fedproto + fedper", "fedproto and fedper both decide what happens to the head; keep one"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    with pytest.raises(FedloomError, match=f"method: {reason}"):
        train(text, rounds=1)


def test_the_server_needs_sums_alone() -> None:
    check_sums(method("fedproto"), "uniform", {})


def test_the_number_of_workers_changes_no_bit() -> None:
    one, three = (train("fedproto", **FIELDS, workers=workers) for workers in (1, 3))
    assert checkpoint(one).keys() == checkpoint(three).keys()
    assert all(torch.equal(value, checkpoint(three)[name]) for name, value in checkpoint(one).items())
    assert all(torch.equal(kept["personal"], memories(three)[k]["personal"]) for k, kept in memories(one).items())
