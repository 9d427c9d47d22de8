"""FedPer as FedBABU's code runs it."""

from __future__ import annotations

from reference import BODY, HEAD, Weights, cross_entropy, mean
from tiny import agree, distance, memories, problem, train


def test_bodies_are_averaged_and_every_round_begins_with_the_initial_head() -> None:
    run = train("fedper-reset", rounds=4, workers=2)
    told = problem(run)
    w: Weights = told.initial
    for t, cohort in told.rounds:
        average = mean([told.local(w, t, k, cross_entropy) for k in cohort], told.shares(cohort))
        w = {**w, **{name: average[name] for name in BODY}}
    agree(run, w)
    assert distance(run, HEAD) == 0 and distance(run, BODY) > 1e-3
    assert memories(run) == {}


def test_it_differs_from_fedper_once_a_client_returns() -> None:
    one, other = train("fedper", fraction=1.0), train("fedper-reset", fraction=1.0)
    assert one.summary["digest"] != other.summary["digest"]
