"""FedNTD."""

from __future__ import annotations

import pytest
import reference
import torch
from reference import BODY, cross_entropy, dot_regression
from reference_regularizers import cosines, divergence, mixed, not_true, not_true_distillation, weighted
from tiny import MODEL_BYTES, agree, gap, problem, seen, traffic, train

from fedloom.methods.ntd import NTD


@pytest.mark.parametrize(("weight", "t", "batch"), [(1.0, 1.0, "full"), (0.3, 3.0, 64)])
def test_the_divergence_over_not_true_classes_is_added(weight: float, t: float, batch: int | str) -> None:
    run = train(f"ntd(weight={weight}, t={t})", batch=batch, workers=2)
    agree(run, reference.fedavg(problem(run), weighted(cross_entropy, not_true_distillation(t), weight), teaching=True))


def test_or_mixed_in() -> None:
    run = train("ntd(beta=0.4)")
    agree(run, reference.fedavg(problem(run), mixed(cross_entropy, not_true_distillation(1.0), 0.4), teaching=True))


def test_logits_are_those_of_the_methods_own_head() -> None:
    run = train("dr + ntd(beta=0.5)", lr=1.0)
    loss = mixed(dot_regression, not_true_distillation(1.0, cosines), 0.5)
    agree(run, reference.fedavg(problem(run), loss, BODY, teaching=True))


def test_with_all_the_weight_on_the_rest_there_is_no_distillation() -> None:
    plain = train("fedavg").summary["digest"]
    assert train("ntd(beta=1)").summary["digest"] == plain
    assert train("ntd(weight=0)").summary["digest"] == plain


@pytest.mark.parametrize("t", [1.0, 3.0])
def test_the_true_classes_logit_is_free(t: float) -> None:
    z, z_g = torch.randn(2, 8, 6, dtype=torch.double).unbind()
    y = torch.tensor([0, 5, 2, 2, 1, 4, 3, 0])
    value = NTD(t=t).term(*seen(z, z_g, y))
    torch.testing.assert_close(value, t**2 * divergence(not_true(z_g, y), not_true(z, y), t))
    bent, bent_g = z.clone(), z_g.clone()
    bent[torch.arange(8), y] += 50
    bent_g[torch.arange(8), y] -= 50
    torch.testing.assert_close(NTD(t=t).term(*seen(bent, bent_g, y)), value, rtol=0, atol=0)
    live = z.clone().requires_grad_()
    NTD(t=t).term(*seen(live, z_g, y)).backward()
    assert live.grad is not None
    assert live.grad[torch.arange(8), y].abs().max() == 0 < live.grad.abs().max()


def test_between_two_classes_there_is_nothing_to_distil() -> None:
    z, z_g = torch.randn(2, 8, 2).unbind()
    live = z.clone().requires_grad_()
    value = NTD().term(*seen(live, z_g, torch.arange(8) % 2))
    value.backward()
    assert value == 0
    assert live.grad is not None and live.grad.abs().max() == 0


def test_at_the_first_step_of_a_round_nothing_pulls() -> None:
    fields = {"epochs": 1, "rounds": 2, "fraction": 1.0}
    assert gap(train("ntd(weight=100)", **fields), train("fedavg", **fields)) < 1e-6


def test_the_teacher_costs_no_traffic() -> None:
    assert traffic(train("fedntd")) == {(MODEL_BYTES, MODEL_BYTES)}
