"""FedDC."""

from __future__ import annotations

import pytest
import reference
import torch
from reference import flat
from reference_regularizers import feddc
from tiny import BODY_BYTES, MODEL_BYTES, agree, checkpoint, gap, memories, problem, traffic, train


@pytest.mark.parametrize(
    ("alpha", "momentum", "decay", "batch"),
    [(0.1, 0.0, 0.0, "full"), (0.01, 0.9, 0.001, "full"), (0.1, 0.5, 0.001, 64)],
)
def test_weights_drifts_and_updates_are_the_papers_with_unequal_clients(
    alpha: float, momentum: float, decay: float, batch: int | str
) -> None:
    run = train(
        f"feddc(alpha={alpha})", momentum=momentum, weight_decay=decay, batch=batch, lr=0.02, rounds=4, workers=2
    )
    told = problem(run)
    assert len({tuple(cohort) for cohort in told.cohorts}) > 1
    assert len({len(y) for _, y in told.data}) == 5  # n~_i differs from client to client
    w, common, drift, update = feddc(told, alpha)
    agree(run, w)
    kept = checkpoint(run)
    torch.testing.assert_close(kept["server.feddc.update"].double(), flat(common), rtol=0, atol=1e-5)
    remembered = memories(run)
    assert set(remembered) == {k for cohort in told.cohorts for k in cohort}
    for k, tensors in remembered.items():
        torch.testing.assert_close(tensors["feddc.drift"].double(), flat(drift[k]), rtol=0, atol=1e-5)
        torch.testing.assert_close(tensors["feddc.update"].double(), flat(update[k]), rtol=0, atol=1e-5)


def test_the_servers_drift_is_the_mean_of_all_clients_whether_they_took_part_or_not() -> None:
    run = train("feddc", rounds=2, fraction=0.4, lr=0.02)
    rows = torch.stack([tensors["feddc.drift"].double() for tensors in memories(run).values()])
    assert len(rows) < 5
    torch.testing.assert_close(checkpoint(run)["server.feddc.drift"].double(), rows.sum(0) / 5, rtol=0, atol=1e-7)
    assert rows.abs().max() > 1e-3


def test_the_first_round_of_equal_clients_goes_twice_as_far_as_with_a_proximal_term() -> None:
    """All memories are zero, so a client minimizes prox's loss; then the mean of all drifts is added to the mean."""
    fields = {"split": "iid", "clients": 3, "fraction": 1.0, "rounds": 1}
    run, prox = train("feddc(alpha=0.5)", **fields), train("prox(mu=0.5)", **fields)
    initial, near = problem(run).initial, reference.read(prox.path / "final.safetensors")
    agree(run, {n: initial[n] + 2 * (near[n] - initial[n]) for n in initial})


def test_updates_follow_the_rate_of_the_round() -> None:
    run = train("feddc", schedule="exp:0.3", lr=0.05)
    agree(run, feddc(problem(run), 0.01)[0])
    assert gap(run, train("fedavg", schedule="exp:0.3", lr=0.05)) > 1e-2


def test_an_update_travels_beside_the_model_both_ways() -> None:
    assert traffic(train("feddc")) == {(2 * MODEL_BYTES, 2 * MODEL_BYTES)}


def test_memories_cover_only_what_is_shared() -> None:
    run = train("feddc + babu", lr=0.02)
    assert traffic(run) == {(2 * BODY_BYTES, 2 * BODY_BYTES)}
    assert {4 * len(tensors["feddc.drift"]) for tensors in memories(run).values()} == {BODY_BYTES}
