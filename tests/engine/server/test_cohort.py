"""Cohorts: of a fixed size, or of clients that take part independently of each other."""

from __future__ import annotations

import numpy as np
import pytest
from reference import fedavg
from tiny import agree, gap, problem, train

import fedloom as fl
from fedloom import FedloomError
from fedloom.engine.server.cohort import largest_cohort, sample_clients
from fedloom.recipe import recipe

SPARSE = {"participation": "bernoulli", "clients": 6, "fraction": 0.15, "rounds": 8, "epochs": 1}


def test_clients_take_part_independently_with_the_probability_of_the_recipe() -> None:
    chosen = recipe({"participation": "bernoulli", "clients": 20, "fraction": 0.3, "rounds": 2000})
    took = np.zeros((2000, 20), dtype=bool)
    for round in range(1, 2001):
        took[round - 1, sample_clients(chosen, round)] = True
    sizes = took.sum(1)
    assert abs(took.mean() - 0.3) < 0.01  # the deviation is 0.0023
    assert np.abs(took.mean(0) - 0.3).max() < 0.05  # 0.010
    assert abs(sizes.var() - 20 * 0.3 * 0.7) < 0.6  # a binomial's; 0.13
    correlations = np.corrcoef(took.T)[~np.eye(20, dtype=bool)]
    assert abs(correlations.mean()) < 0.01  # fixed sizes would have -1/19
    assert largest_cohort(chosen) == sizes.max()
    assert sample_clients(chosen, 7) == sample_clients(chosen.changed(method="prox", lr=0.5), 7)


def test_everybody_takes_part_with_probability_one_and_fixed_cohorts_are_as_before() -> None:
    assert sample_clients(recipe({"participation": "bernoulli", "clients": 7, "fraction": 1.0}), 3) == list(range(7))
    fixed = recipe({"clients": 10, "fraction": 0.3, "seed": 5})
    assert [sample_clients(fixed, round) for round in (1, 2)] == [[7, 8, 9], [1, 6, 9]]
    assert largest_cohort(fixed) == 3


@pytest.mark.parametrize("vmap", ["off", 2])
def test_a_round_without_clients_leaves_the_model_as_it_was(vmap: int | str) -> None:
    run = train("fedavg", **SPARSE, vmap=vmap, eval_every=1, workers=2)
    sizes = [len(line["cohort"]) for line in run.rounds]
    assert 0 in sizes and max(sizes) >= 1 and len(set(sizes)) > 1
    empty = next(line for line in run.rounds if not line["cohort"])
    assert (empty["train_loss"], empty["bytes_up"], empty["bytes_down"], empty["lost"]) == (None, 0, 0, 0)
    p = problem(run)
    p.cohorts = [cohort for cohort in p.cohorts if cohort]
    numbers = [line["round"] for line in run.rounds if line["cohort"]]
    w = p.initial
    for t, cohort in zip(numbers, p.cohorts, strict=True):
        one = problem(run)
        one.initial, one.cohorts = w, [cohort]
        original = one.shuffles
        one.shuffles = lambda _, k, t=t, original=original: original(t, k)  # type: ignore[method-assign]
        w = fedavg(one)
    agree(run, w)


def test_cohorts_larger_than_expected_have_room() -> None:
    run = train("scaffold", participation="bernoulli", clients=5, fraction=0.4, rounds=8, epochs=1)
    assert max(len(line["cohort"]) for line in run.rounds) > run.recipe.cohort_size == 2
    assert all(line["lost"] == 0 for line in run.rounds)


def test_the_last_round_may_be_empty_and_what_belongs_to_the_end_still_happens() -> None:
    seed = next(
        seed
        for seed in range(100)
        if not sample_clients(recipe({**SPARSE, "rounds": 3, "seed": seed}), 3)
        and sample_clients(recipe({**SPARSE, "rounds": 3, "seed": seed}), 2)
    )
    fields = {**SPARSE, "rounds": 3, "seed": seed}
    calibrated, plain = (train(f"sphere(calibrate={word})", **fields) for word in ("true", "false"))
    assert gap(calibrated, plain) > 1e-3
    assert fl.analyze(calibrated.path, what="norms")


def test_analysis_of_every_round_copes_with_empty_ones() -> None:
    run = train("fedavg", **SPARSE, analyze_every=1)
    assert run.summary["digest"] == train("fedavg", **SPARSE).summary["digest"]


def test_secure_aggregation_refuses_cohorts_that_may_have_one_client() -> None:
    pytest.importorskip("flwr")
    from fedloom.deploy.flower.app import check_secure
    from fedloom.engine.experiment import prepare

    fields = {"participation": "bernoulli", "clients": 10, "deploy": {"secure_aggregation": True}}
    with pytest.raises(FedloomError, match=r"^deploy.secure_aggregation: with participation: bernoulli .*set .*fixed"):
        check_secure(prepare(recipe(fields)))


def test_an_unknown_participation_is_refused() -> None:
    with pytest.raises(FedloomError, match=r"^participation: must be 'fixed' or 'bernoulli' \(got poisson\)"):
        recipe({"participation": "poisson"})
