"""Feature distillation, and FedDr+ which it completes."""

from __future__ import annotations

from functools import partial

import pytest
import reference
from reference import BODY, cross_entropy, distilled, dot_regression
from tiny import BODY_BYTES, MODEL_BYTES, agree, distance, gap, problem, traffic, train


@pytest.mark.parametrize("beta", [0.9, 0.3])
def test_feddrplus_mixes_dot_regression_with_the_distance_of_features(beta: float) -> None:
    run = train(f"dr + fd(beta={beta})", lr=1.0, epochs=4)
    agree(run, reference.fedavg(problem(run), partial(distilled, dot_regression, beta), BODY, teaching=True))


def test_it_mixes_with_cross_entropy_as_well() -> None:
    run = train("fd(beta=0.5)", workers=2)
    agree(run, reference.fedavg(problem(run), partial(distilled, cross_entropy, 0.5), teaching=True))


def test_the_teacher_is_the_model_that_this_round_began_with() -> None:
    """At the first step of a round features are the teacher's: the loss is beta times the base loss."""
    run = train("fd(beta=0.25)", epochs=1, rounds=2, fraction=1.0, momentum=0.0, weight_decay=0.0)
    plain = train("fedavg", epochs=1, rounds=2, fraction=1.0, momentum=0.0, weight_decay=0.0, lr=0.025)
    assert run.rounds[1]["train_loss"] == pytest.approx(0.25 * plain.rounds[1]["train_loss"], rel=1e-5)
    assert gap(run, plain) < 1e-6


def test_with_all_the_weight_on_the_rest_there_is_no_distillation() -> None:
    assert train("dr + fd(beta=1)", lr=1.0).summary["digest"] == train("dr", lr=1.0).summary["digest"]
    assert train("fd(beta=1)").summary["digest"] == train("fedavg").summary["digest"]


def test_with_no_weight_on_the_rest_nothing_pulls() -> None:
    assert distance(train("dr + fd(beta=0)", lr=1.0, weight_decay=0)) < 1e-6


def test_the_teacher_costs_no_traffic() -> None:
    assert traffic(train("dr + fd")) == {(BODY_BYTES, BODY_BYTES)}
    assert traffic(train("fd")) == {(MODEL_BYTES, MODEL_BYTES)}
