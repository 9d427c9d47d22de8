"""FedAvg, the empty sum: what every other method is measured against."""

from __future__ import annotations

from typing import Any

import pytest
import reference
from tiny import MODEL_BYTES, agree, gap, problem, traffic, train


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_average_of_full_batch_training_is_the_papers(weighting: str) -> None:
    run = train("fedavg", weighting=weighting)
    agree(run, reference.fedavg(problem(run)))


def test_weighting_by_samples_and_by_clients_differ_when_clients_do() -> None:
    assert gap(train("fedavg", weighting="samples"), train("fedavg", weighting="uniform")) > 1e-3


def test_minibatches_follow_the_keyed_shuffle_and_the_last_one_is_smaller() -> None:
    run = train("fedavg", batch=32, epochs=2, rounds=2, workers=2)
    assert any(len(y) % 32 for _, y in problem(run).data)
    agree(run, reference.fedavg(problem(run)))


def test_softmax_regression_is_trained_as_written() -> None:
    run = train("fedavg", model="linear")
    agree(run, reference.fedavg(problem(run)))


@pytest.mark.parametrize("fields", [{"momentum": 0.0}, {"weight_decay": 0.0}, {"momentum": 0.0, "weight_decay": 0.0}])
def test_momentum_and_decay_can_each_be_left_out(fields: dict[str, Any]) -> None:
    run = train("fedavg", **fields)
    agree(run, reference.fedavg(problem(run)))


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.1] * 4),
        ("step", [0.1, 0.1, 0.01, 0.001]),
        ("exp:0.5", [0.1, 0.05, 0.025, 0.0125]),
        ("cosine", [0.1, 0.1 * (2 + 2**0.5) / 4, 0.05, 0.1 * (2 - 2**0.5) / 4]),
    ],
)
def test_every_round_trains_with_the_rate_of_its_schedule(schedule: str, rates: list[float]) -> None:
    run = train("fedavg", schedule=schedule, rounds=4)
    assert [line["lr"] for line in run.rounds] == pytest.approx(rates)
    assert [problem(run).rate(t) for t in (1, 2, 3, 4)] == pytest.approx(rates)
    agree(run, reference.fedavg(problem(run)))


def test_a_clipped_step_is_no_longer_than_asked() -> None:
    run = train("fedavg", clip=0.01, momentum=0.0, weight_decay=0.0, fraction=0.2, rounds=1)
    initial, final = reference.read(run.path / "initial.safetensors"), reference.read(run.path / "final.safetensors")
    moved = reference.square({name: final[name] - initial[name] for name in final}) ** 0.5
    assert moved == pytest.approx(3 * 0.1 * 0.01, rel=0.01)  # three steps of rate 0.1, almost in one direction


def test_the_whole_model_travels_both_ways() -> None:
    assert traffic(train("fedavg")) == {(MODEL_BYTES, MODEL_BYTES)}
