"""Logit distillation."""

from __future__ import annotations

import pytest
import reference
import torch
from reference import BODY, cross_entropy, dot_regression
from reference_regularizers import cosines, logit_distillation, mixed, weighted
from tiny import BODY_BYTES, MODEL_BYTES, agree, gap, problem, seen, traffic, train

from fedloom.methods.ld import LD


@pytest.mark.parametrize(("weight", "batch"), [(1.0, "full"), (0.1, 64)])
def test_the_squared_difference_of_logits_is_added(weight: float, batch: int | str) -> None:
    run = train(f"ld(weight={weight})", batch=batch, workers=2)
    agree(run, reference.fedavg(problem(run), weighted(cross_entropy, logit_distillation(), weight), teaching=True))


def test_or_mixed_in() -> None:
    run = train("ld(beta=0.7)")
    agree(run, reference.fedavg(problem(run), mixed(cross_entropy, logit_distillation(), 0.7), teaching=True))


def test_logits_are_those_of_the_methods_own_head() -> None:
    run = train("dr + ld(beta=0.5)", lr=1.0)
    loss = mixed(dot_regression, logit_distillation(cosines), 0.5)
    agree(run, reference.fedavg(problem(run), loss, BODY, teaching=True))
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}


def test_the_mean_is_over_batch_and_classes() -> None:
    z, z_g = torch.randn(2, 8, 5).unbind()
    torch.testing.assert_close(LD().term(*seen(z, z_g)), (z - z_g).square().sum() / 40)


def test_with_all_the_weight_on_the_rest_there_is_no_distillation() -> None:
    plain = train("fedavg").summary["digest"]
    assert train("ld(beta=1)").summary["digest"] == plain
    assert train("ld(weight=0)").summary["digest"] == plain


def test_at_the_first_step_of_a_round_nothing_pulls() -> None:
    fields = {"epochs": 1, "rounds": 2, "fraction": 1.0}
    assert train("ld(weight=100)", **fields).summary["digest"] == train("fedavg", **fields).summary["digest"]
    assert gap(train("ld", lr=0.05), train("fedavg", lr=0.05)) > 1e-3


def test_the_teacher_costs_no_traffic() -> None:
    assert traffic(train("ld")) == {(MODEL_BYTES, MODEL_BYTES)}
