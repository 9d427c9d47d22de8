"""FedBABU."""

from __future__ import annotations

import pytest
import torch
from reference import BODY, HEAD, cross_entropy, fedavg
from tiny import BODY_BYTES, MODEL_BYTES, agree, distance, problem, traffic, train

import fedloom as fl
from fedloom import FedloomError


def test_the_body_is_trained_as_if_the_head_were_a_constant() -> None:
    run = train("babu")
    agree(run, fedavg(problem(run), cross_entropy, BODY))


def test_the_head_stays_as_drawn_to_the_bit_whatever_decays() -> None:
    run = train("babu", weight_decay=0.1, batch=32, workers=2)
    initial = problem(run).initial
    assert all(torch.equal(run.weights[name].double(), initial[name]) for name in HEAD)
    assert distance(run, BODY) > 1e-3


def test_the_first_weights_are_fedavgs() -> None:
    one, other = problem(train("babu", rounds=1)), problem(train("fedavg", rounds=1))
    assert all(torch.equal(one.initial[name], other.initial[name]) for name in one.initial)
    assert one.cohorts == other.cohorts


def test_only_the_body_travels() -> None:
    run = train("babu")
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}
    assert BODY_BYTES < MODEL_BYTES
    assert run.summary["shared"] * 4 == BODY_BYTES


def test_fine_tuning_may_train_the_head() -> None:
    outcome = fl.personalize(train("babu", split="shards:2"), part="head", epochs=3, lr=0.1)
    assert outcome.personal["mean"] > outcome.initial["mean"] + 0.1


def test_a_head_with_a_fixed_piece_is_frozen_in_the_others() -> None:
    run = train("etf + babu")
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}
    assert distance(run, ("head.projection.weight", "head.scale", "head.weight")) == 0
    assert distance(run, ("body.1.weight",)) > 1e-3


@pytest.mark.parametrize("other", ["dr", "sphere", "gela"])
def test_where_the_whole_head_is_fixed_the_refusal_says_that_nothing_is_left(other: str) -> None:
    with pytest.raises(FedloomError) as caught:
        train(f"{other} + babu")
    said = f"method: {other} fixes head.weight for good, so babu has nothing left to freeze: {other} alone does it"
    assert str(caught.value) == f"{said}; leave babu out"
