"""FedRep."""

from __future__ import annotations

import pytest
import reference
import torch
from reference import BODY, HEAD, flat
from tiny import BODY_BYTES, agree, distance, gap, memories, problem, traffic, train

from fedloom.methods import Phase
from fedloom.methods.fedrep import FedRep


@pytest.mark.parametrize(("momentum", "batch"), [(0.9, "full"), (0.5, 64)])
def test_the_head_is_trained_first_then_the_body_with_that_head(momentum: float, batch: int | str) -> None:
    run = train("fedrep(head_epochs=4)", momentum=momentum, batch=batch, epochs=2, rounds=4, workers=2)
    told = problem(run)
    w, heads = reference.fedrep(told, head_epochs=4)
    agree(run, w)
    remembered = memories(run)
    assert set(remembered) == {k for cohort in told.cohorts for k in cohort}
    for k, tensors in remembered.items():
        torch.testing.assert_close(tensors["personal"].double(), flat(heads[k], HEAD), rtol=0, atol=1e-5)


def test_the_order_matters() -> None:
    assert gap(train("fedrep(head_epochs=3)"), train("fedper")) > 1e-3


def test_the_papers_ten_head_epochs_come_before_the_recipes_epochs() -> None:
    assert FedRep().phases(3) == [Phase(10, ("head",)), Phase(3, ("body", "norm", "adapter"))]


def test_the_server_never_holds_a_head() -> None:
    run = train("fedrep(head_epochs=2)")
    assert distance(run, HEAD) == 0
    assert distance(run, BODY) > 1e-3
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}


def test_scaffold_counts_only_the_steps_that_moved_what_is_shared() -> None:
    """One round: the control is the mean gradient of the body's steps, however long the head was trained before."""
    run = train("scaffold + fedrep(head_epochs=7)", rounds=1, epochs=1, momentum=0.0, weight_decay=0.0)
    told = problem(run)
    (cohort,) = told.cohorts
    heads = {k: t["personal"].double() for k, t in memories(run).items()}
    for k in cohort:
        w = {**told.initial, "head.weight": heads[k][:640].view(10, 64), "head.bias": heads[k][640:]}
        gradient = reference.gradients(reference.cross_entropy, w, *told.data[k], BODY)
        control = memories(run)[k]["scaffold.control"].double()
        torch.testing.assert_close(control, flat(gradient, BODY), rtol=0, atol=1e-5)
