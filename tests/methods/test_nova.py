"""FedNova."""

from __future__ import annotations

import pytest
import reference
from tiny import MODEL_BYTES, agree, gap, problem, traffic, train


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_updates_count_per_step_when_clients_take_different_numbers(momentum: float) -> None:
    run = train("nova", batch=16, epochs=2, rounds=2, momentum=momentum, lr=0.03, workers=2)
    told = problem(run)
    assert all(len({told.steps(k) for k in cohort}) == len(cohort) for cohort in told.cohorts)
    agree(run, reference.nova(told))
    assert gap(run, train("fedavg", batch=16, epochs=2, rounds=2, momentum=momentum, lr=0.03)) > 1e-3


def test_uniform_weighting_is_heard() -> None:
    run = train("nova", batch=64, rounds=2, weighting="uniform")
    agree(run, reference.nova(problem(run)))


def test_with_equal_steps_it_is_fedavg() -> None:
    assert gap(train("nova"), train("fedavg")) < 1e-6


def test_nothing_more_travels_than_with_fedavg() -> None:
    assert traffic(train("nova")) == {(MODEL_BYTES, MODEL_BYTES)}
