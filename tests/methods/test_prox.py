"""FedProx."""

from __future__ import annotations

import pytest
import reference
from tiny import BODY_BYTES, MODEL_BYTES, agree, distance, problem, traffic, train


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
    assert distance(run, reference.HEAD) == 0
    assert distance(run, reference.BODY) > 1e-3
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}
