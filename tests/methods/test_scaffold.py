"""SCAFFOLD, option II."""

from __future__ import annotations

import pytest
import reference
import torch
from reference import flat, mean
from tiny import BODY_BYTES, MODEL_BYTES, agree, checkpoint, gap, memories, problem, traffic, train

from fedloom.methods.scaffold import effective_steps


@pytest.mark.parametrize(
    ("momentum", "decay", "batch"), [(0.0, 0.0, "full"), (0.9, 0.001, "full"), (0.5, 0.0, 64), (0.0, 0.001, 64)]
)
def test_weights_and_controls_are_the_papers_when_clients_come_and_go(
    momentum: float, decay: float, batch: int | str
) -> None:
    run = train("scaffold", momentum=momentum, weight_decay=decay, batch=batch, rounds=4, workers=2)
    told = problem(run)
    assert len({tuple(cohort) for cohort in told.cohorts}) > 1
    w, c, c_i = reference.scaffold(told)
    agree(run, w)
    torch.testing.assert_close(checkpoint(run)["server.scaffold.control"].double(), flat(c), rtol=0, atol=1e-5)
    remembered = memories(run)
    assert set(remembered) == {k for cohort in told.cohorts for k in cohort}
    for k, tensors in remembered.items():
        torch.testing.assert_close(tensors["scaffold.control"].double(), flat(c_i[k]), rtol=0, atol=1e-5)


def test_controls_follow_the_rate_of_the_round() -> None:
    run = train("scaffold", schedule="exp:0.3", rounds=3)
    agree(run, reference.scaffold(problem(run))[0])


def test_with_all_clients_and_one_step_it_is_large_batch_sgd() -> None:
    fields = {"split": "iid", "clients": 3, "fraction": 1.0, "momentum": 0.0, "weight_decay": 0.0, "rounds": 5}
    run = train("scaffold", epochs=1, **fields)
    told = problem(run)
    assert len({len(y) for _, y in told.data}) == 1  # equal clients: the mean of their gradients is that of all data
    x, y = (torch.cat(rows) for rows in zip(*told.data, strict=True))
    w = told.initial
    for _ in range(5):
        gradient = reference.gradients(reference.cross_entropy, w, x, y, list(w))
        w = {name: w[name] - 0.1 * gradient[name] for name in w}
    agree(run, w)


def test_with_all_clients_the_servers_control_is_the_mean_of_theirs() -> None:
    run = train("scaffold", fraction=1.0)
    rows = [{"control": tensors["scaffold.control"].double()} for tensors in memories(run).values()]
    assert len(rows) == 5
    expected = mean(rows, [1 / 5] * 5)["control"]
    torch.testing.assert_close(checkpoint(run)["server.scaffold.control"].double(), expected, rtol=0, atol=1e-6)
    assert expected.abs().max() > 1e-3


def test_the_first_round_is_fedavgs_and_the_second_is_not() -> None:
    assert train("scaffold", rounds=1).summary["digest"] == train("fedavg", rounds=1).summary["digest"]
    assert gap(train("scaffold", rounds=2), train("fedavg", rounds=2)) > 1e-3


def test_effective_steps_are_the_distance_that_a_constant_gradient_carries() -> None:
    assert effective_steps(7, 0.0) == 7
    assert effective_steps(1, 0.9) == pytest.approx(1)
    assert effective_steps(30, 0.9) == pytest.approx(213.8, abs=0.05)
    assert effective_steps(100, 0.9) == pytest.approx(910.0, abs=0.05)


def test_the_control_travels_beside_the_model() -> None:
    assert traffic(train("scaffold")) == {(2 * MODEL_BYTES, 2 * MODEL_BYTES)}


def test_controls_cover_only_what_is_shared() -> None:
    run = train("scaffold + babu")
    assert traffic(run) == {(2 * BODY_BYTES, 2 * BODY_BYTES)}
    assert 4 * len(checkpoint(run)["server.scaffold.control"]) == BODY_BYTES
