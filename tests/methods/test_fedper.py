"""FedPer."""

from __future__ import annotations

import reference
import torch
from reference import BODY, HEAD, flat
from tiny import BODY_BYTES, agree, distance, memories, problem, traffic, train


def test_body_and_own_head_are_trained_together_and_heads_are_kept() -> None:
    run = train("fedper", rounds=4, workers=2)
    told = problem(run)
    assert any(sum(k in cohort for cohort in told.cohorts) > 1 for k in range(5))  # somebody came back to its head
    w, heads = reference.fedper(told)
    agree(run, w)
    remembered = memories(run)
    assert set(remembered) == {k for cohort in told.cohorts for k in cohort}
    for k, tensors in remembered.items():
        torch.testing.assert_close(tensors["personal"].double(), flat(heads[k], HEAD), rtol=0, atol=1e-5)


def test_the_server_never_holds_a_head() -> None:
    run = train("fedper")
    assert distance(run, HEAD) == 0
    assert distance(run, BODY) > 1e-3
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}


def test_own_heads_are_better_on_own_data_than_the_drawn_one() -> None:
    run = train("fedper", split="shards:2", fraction=1.0)
    assert run.summary["personal_accuracy"]["mean"] > run.summary["client_accuracy"]["mean"] + 0.2
