"""FedDyn."""

from __future__ import annotations

import pytest
import reference
import torch
from reference import cross_entropy, flat, mean
from reference_regularizers import feddyn
from tiny import BODY_BYTES, MODEL_BYTES, agree, checkpoint, gap, memories, problem, traffic, train


@pytest.mark.parametrize(
    ("alpha", "momentum", "decay", "batch"),
    [(0.1, 0.0, 0.0, "full"), (0.01, 0.9, 0.001, "full"), (0.1, 0.5, 0.001, 64)],
)
def test_weights_and_both_memories_are_the_papers_when_clients_come_and_go(
    alpha: float, momentum: float, decay: float, batch: int | str
) -> None:
    run = train(
        f"feddyn(alpha={alpha})", momentum=momentum, weight_decay=decay, batch=batch, lr=0.05, rounds=4, workers=2
    )
    told = problem(run)
    assert len({tuple(cohort) for cohort in told.cohorts}) > 1
    w, h, gradients = feddyn(told, alpha)
    agree(run, w)
    torch.testing.assert_close(checkpoint(run)["server.feddyn.h"].double(), flat(h), rtol=0, atol=1e-5)
    remembered = memories(run)
    assert set(remembered) == {k for cohort in told.cohorts for k in cohort}
    for k, tensors in remembered.items():
        torch.testing.assert_close(tensors["feddyn.gradient"].double(), flat(gradients[k]), rtol=0, atol=1e-5)


def test_with_all_clients_the_servers_memory_is_the_mean_of_theirs() -> None:
    run = train("feddyn(alpha=0.1)", fraction=1.0, lr=0.05)
    rows = torch.stack([tensors["feddyn.gradient"].double() for tensors in memories(run).values()])
    assert len(rows) == 5
    torch.testing.assert_close(checkpoint(run)["server.feddyn.h"].double(), rows.mean(0), rtol=0, atol=1e-7)
    assert rows.mean(0).abs().max() > 1e-4


def test_a_vanishing_alpha_leaves_fedavgs_clients_but_not_its_server() -> None:
    """h / alpha does not vanish with alpha: the server adds 1/N of all updates that it ever saw to the average."""
    run = train("feddyn(alpha=1e-6)", lr=0.05)
    told = problem(run)
    w, seen = told.initial, {name: torch.zeros_like(value) for name, value in told.initial.items()}
    for t, cohort in told.rounds:
        rows = [told.local(w, t, k, cross_entropy) for k in cohort]
        seen = {n: seen[n] + sum(row[n] - w[n] for row in rows) / len(told.data) for n in w}
        average = mean(rows, told.shares(cohort))
        w = {n: average[n] + seen[n] for n in w}
    agree(run, w)
    assert gap(run, train("fedavg", lr=0.05)) > 1e-2


def test_only_the_model_travels() -> None:
    assert traffic(train("feddyn")) == {(MODEL_BYTES, MODEL_BYTES)}


def test_memories_cover_only_what_is_shared() -> None:
    run = train("feddyn + babu", lr=0.05)
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}
    assert 4 * len(checkpoint(run)["server.feddyn.h"]) == BODY_BYTES
    assert {4 * len(tensors["feddyn.gradient"]) for tensors in memories(run).values()} == {BODY_BYTES}
    assert all(torch.equal(run.weights[name].double(), problem(run).initial[name]) for name in reference.HEAD)
