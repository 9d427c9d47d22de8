"""Clients that train alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from reference import BODY, ORDER, cross_entropy, dot_regression, features, flat, read
from reference_personal import (
    NORM,
    NORMED,
    REST,
    STATISTICS,
    normed_clients,
    own_tests,
    personal,
    share_right,
)
from reference_regularizers import logits
from tiny import distance, memories, problem, traffic, train

from fedloom import FedloomError


@pytest.mark.parametrize(("momentum", "batch"), [(0.9, "full"), (0.5, 64)])
def test_every_client_is_plain_sgd_on_its_own_data(momentum: float, batch: int | str) -> None:
    run = train("local", momentum=momentum, batch=batch, rounds=4, workers=2)
    told = problem(run)
    assert any(sum(k in cohort for cohort in told.cohorts) > 1 for k in range(5))  # somebody went on with its own
    expected = [told.initial] * 5
    for t, cohort in told.rounds:
        for k in cohort:
            expected[k] = told.local(expected[k], t, k, cross_entropy)
    remembered = memories(run)
    assert set(remembered) == {k for cohort in told.cohorts for k in cohort}
    for k, tensors in remembered.items():
        torch.testing.assert_close(tensors["personal"].double(), flat(expected[k]), rtol=0, atol=1e-5)
        assert (flat(expected[k]) - flat(told.initial)).abs().max() > 1e-2


def test_nothing_is_shared_and_the_server_stays_as_drawn() -> None:
    run = train("local")
    assert traffic(run) == {(0, 0)}
    assert run.summary["shared"] == 0
    assert distance(run) == 0


def test_each_client_is_tested_with_its_own_model() -> None:
    run = train("local", split="shards:2", fraction=0.8, rounds=1)
    told = problem(run)
    _, own = personal(told, ORDER)
    expected = [share_right(logits(w, x), y) for w, (x, y) in zip(own, own_tests(told), strict=True)]
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(expected, abs=1e-9)
    assert run.summary["personal_accuracy"]["mean"] > run.summary["client_accuracy"]["mean"] + 0.3


def test_with_a_fixed_head_the_body_is_all_that_is_trained() -> None:
    run = train("local + dr", lr=1.0)
    told = problem(run)
    expected = [told.initial] * 5
    for t, cohort in told.rounds:
        for k in cohort:
            expected[k] = told.local(expected[k], t, k, dot_regression, BODY)
    for k, tensors in memories(run).items():
        torch.testing.assert_close(tensors["personal"].double(), flat(expected[k], BODY), rtol=0, atol=1e-5)
    assert traffic(run) == {(0, 0)}


def test_statistics_of_normalizers_stay_with_their_client() -> None:
    Path("normed.py").write_text(NORMED)
    run = train("local", model="normed.py:normed", lr=0.05)
    assert distance(run) == 0 and traffic(run) == {(0, 0)}
    _, own = normed_clients(problem(run), (*REST, *NORM, *STATISTICS))
    vector = ("body.1.weight", "body.1.bias", *NORM, "head.weight", "head.bias")
    for k, tensors in memories(run).items():
        torch.testing.assert_close(tensors["personal"].double(), flat(own[k], vector), rtol=0, atol=1e-5)
        torch.testing.assert_close(tensors["statistics"].double(), flat(own[k], STATISTICS), rtol=0, atol=1e-5)


def test_a_teacher_is_the_clients_own_model_of_the_rounds_start() -> None:
    run = train("local + fd(beta=0.5)")
    told = problem(run)
    expected = [told.initial] * 5
    for t, cohort in told.rounds:
        for k in cohort:
            begin = expected[k]
            expected[k] = told.local(
                begin,
                t,
                k,
                lambda w, x, y, begin=begin: (
                    0.5 * cross_entropy(w, x, y) + 0.5 * (features(w, x) - features(begin, x)).square().mean()
                ),
            )
    for k, tensors in memories(run).items():
        torch.testing.assert_close(tensors["personal"].double(), flat(expected[k]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("other", ["prox", "scaffold", "feddyn", "feddc", "fedsol", "nova", "exp", "median", "clipped"])
def test_what_acts_on_the_exchange_is_refused_because_there_is_none(other: str) -> None:
    for text in (f"local + {other}", f"{other} + local"):
        with pytest.raises(FedloomError) as caught:
            train(text)
        said = f"method: {other} acts on what clients share, and with local they share nothing; keep one"
        assert str(caught.value) == said


def test_the_drawn_model_is_what_a_newcomer_has() -> None:
    run = train("local", rounds=1, fraction=0.2)
    told = problem(run)
    (cohort,) = told.cohorts
    initial = read(run.path / "initial.safetensors")
    expected = [share_right(logits(initial, x), y) for x, y in own_tests(told)]
    found = run.clients[-1]["personal_accuracy"]
    assert [found[k] for k in range(5) if k not in cohort] == [expected[k] for k in range(5) if k not in cohort]


@pytest.mark.parametrize(
    "method", ["local", "local + dr", "local + fn", "local + sphere", "local + etf", "local + gela"]
)
def test_every_head_can_be_trained_alone(method: str) -> None:
    rate = {"local + gela": 0.01, "local + dr": 1.0}.get(method, 0.3)
    run = train(method, split="shards:2", fraction=1.0, rounds=3, lr=rate, head_init="etf", bn="batch")
    assert traffic(run) == {(0, 0)} and run.summary["shared"] == 0
    assert run.summary["personal_accuracy"]["mean"] > run.summary["client_accuracy"]["mean"] + 0.3
