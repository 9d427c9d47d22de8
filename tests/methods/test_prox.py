"""FedProx."""

from __future__ import annotations

import pytest
import reference
import torch
from reference import BODY, HEAD, cross_entropy, dot_regression, flat, mean
from reference_regularizers import distillation, mixed, near, weighted
from tiny import BODY_BYTES, MODEL_BYTES, agree, distance, gap, memories, problem, traffic, train


@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_the_closed_form_is_the_gradient_of_the_papers_loss(mu: float) -> None:
    run = train(f"prox(mu={mu})")
    agree(run, reference.prox(problem(run), mu))


def test_without_its_term_it_is_fedavg_bit_for_bit() -> None:
    assert train("prox(mu=0)").summary["digest"] == train("fedavg").summary["digest"]


def test_the_stronger_the_term_the_nearer_clients_stay() -> None:
    far, near, nearest = (
        distance(train(f"prox(mu={mu})", epochs=20, rounds=1, lr=0.02, weight_decay=0)) for mu in (0, 3, 30)
    )
    assert nearest < near / 3 < near < far / 2


def test_at_rate_one_over_mu_a_client_never_gets_further_than_one_step() -> None:
    """w - (g + mu (w - w_g)) / mu = w_g - g / mu: every step begins anew from the broadcast weights."""
    once = {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.0, "rounds": 1}
    one = distance(train("prox(mu=100)", epochs=1, **once))
    assert distance(train("prox(mu=100)", epochs=30, **once)) == pytest.approx(one, rel=0.05)
    assert distance(train("fedavg", epochs=30, **once)) > 10 * one


def test_nothing_more_travels_than_with_fedavg() -> None:
    assert traffic(train("prox")) == {(MODEL_BYTES, MODEL_BYTES)}


def test_the_term_leaves_a_frozen_head_alone() -> None:
    run = train("prox(mu=1) + babu")
    assert distance(run, HEAD) == 0
    assert distance(run, BODY) > 1e-3
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}


# as a convex mix


@pytest.mark.parametrize(("beta", "batch"), [(0.5, "full"), (0.99, "full"), (0.9, 64)])
def test_as_a_mix_it_scales_the_base_loss_as_well(beta: float, batch: int | str) -> None:
    run = train(f"prox(beta={beta}, mu=7)", batch=batch, workers=2)
    agree(run, reference.fedavg(problem(run), mixed(cross_entropy, near(), beta), teaching=True))


def test_it_mixes_with_the_loss_of_another_part() -> None:
    run = train("dr + prox(beta=0.9)", lr=1.0)
    agree(run, reference.fedavg(problem(run), mixed(dot_regression, near(BODY), 0.9), BODY, teaching=True))


def test_it_scales_the_penalties_that_stand_before_it_and_no_others() -> None:
    both = {
        "kd(weight=2) + prox(beta=0.6)": lambda w_g: mixed(
            weighted(cross_entropy, distillation(1.0), 2)(w_g), near(), 0.6
        )(w_g),
        "prox(beta=0.6) + kd(weight=2)": lambda w_g: weighted(
            mixed(cross_entropy, near(), 0.6)(w_g), distillation(1.0), 2
        )(w_g),
    }
    for text, loss in both.items():
        run = train(text)
        agree(run, reference.fedavg(problem(run), loss, teaching=True))


def test_what_a_client_keeps_is_scaled_though_nothing_pulls_at_it() -> None:
    run = train("fedper + prox(beta=0.3)", lr=0.2)
    told = problem(run)
    w, heads = told.initial, [{name: told.initial[name] for name in HEAD} for _ in told.data]
    for t, cohort in told.rounds:
        loss = mixed(cross_entropy, near(BODY), 0.3)(w)
        rows = [told.local({**w, **heads[k]}, t, k, loss) for k in cohort]
        for k, row in zip(cohort, rows, strict=True):
            heads[k] = {name: row[name] for name in HEAD}
        w = {**mean(rows, told.shares(cohort)), **{name: w[name] for name in HEAD}}
    agree(run, w)
    for k, tensors in memories(run).items():
        torch.testing.assert_close(tensors["personal"].double(), flat(heads[k], HEAD), rtol=0, atol=1e-5)


def test_corrections_of_other_parts_are_not_scaled_wherever_they_stand() -> None:
    assert gap(train("scaffold + prox(beta=0.5)"), train("prox(beta=0.5) + scaffold")) < 1e-6


def test_with_all_the_weight_on_the_rest_it_is_fedavg_bit_for_bit() -> None:
    assert train("prox(beta=1)").summary["digest"] == train("fedavg").summary["digest"]


def test_with_no_weight_on_the_rest_nobody_moves() -> None:
    assert distance(train("prox(beta=0)", weight_decay=0)) < 1e-6  # but for the average of equals
