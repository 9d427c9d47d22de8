"""Distillation of logits from the global model."""

from __future__ import annotations

import pytest
import reference
import torch
from reference import BODY, cross_entropy, dot_regression
from reference_regularizers import cosines, distillation, divergence, mixed, weighted
from tiny import BODY_BYTES, MODEL_BYTES, agree, gap, problem, seen, traffic, train

from fedloom.methods.kd import KD


@pytest.mark.parametrize(("weight", "t", "batch"), [(1.0, 1.0, "full"), (2.0, 3.0, 64)])
def test_the_divergence_from_the_global_model_is_added(weight: float, t: float, batch: int | str) -> None:
    run = train(f"kd(weight={weight}, t={t})", batch=batch, workers=2)
    agree(run, reference.fedavg(problem(run), weighted(cross_entropy, distillation(t), weight), teaching=True))


@pytest.mark.parametrize("beta", [0.5, 0.1])
def test_or_mixed_in_and_then_the_weight_has_no_say(beta: float) -> None:
    run = train(f"kd(beta={beta}, weight=7)")
    agree(run, reference.fedavg(problem(run), mixed(cross_entropy, distillation(1.0), beta), teaching=True))


def test_logits_are_those_of_the_methods_own_head() -> None:
    run = train("dr + kd(beta=0.3)", lr=1.0)
    loss = mixed(dot_regression, distillation(1.0, cosines), 0.3)
    agree(run, reference.fedavg(problem(run), loss, BODY, teaching=True))
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}


def test_with_all_the_weight_on_the_rest_there_is_no_distillation() -> None:
    plain = train("fedavg").summary["digest"]
    assert train("kd(beta=1)").summary["digest"] == plain
    assert train("kd(weight=0)").summary["digest"] == plain


def test_at_the_first_step_of_a_round_nothing_pulls() -> None:
    fields = {"epochs": 1, "rounds": 2, "fraction": 1.0}
    assert gap(train("kd(weight=100)", **fields), train("fedavg", **fields)) < 1e-6
    assert gap(train("kd(weight=100)", lr=0.01), train("fedavg", lr=0.01)) > 1e-4


@pytest.mark.parametrize("t", [0.5, 1.0, 4.0])
def test_the_term_is_the_divergence_times_the_squared_temperature(t: float) -> None:
    z, z_g = torch.randn(2, 7, 5, dtype=torch.double).unbind()
    torch.testing.assert_close(KD(t=t).term(*seen(z, z_g)), t**2 * divergence(z_g, z, t))
    assert KD(t=t).term(*seen(z_g, z_g)).abs() < 1e-12


def test_so_a_high_temperature_leaves_half_the_variance_of_what_logits_differ_by() -> None:
    z, z_g = torch.randn(2, 7, 5, dtype=torch.double).unbind()
    expected = (z - z_g).var(1, correction=0).mean() / 2
    torch.testing.assert_close(KD(t=1e3).term(*seen(z, z_g)), expected, rtol=1e-2, atol=0)


def test_the_teacher_costs_no_traffic() -> None:
    assert traffic(train("kd")) == {(MODEL_BYTES, MODEL_BYTES)}
