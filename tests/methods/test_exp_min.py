"""FedExP as FedDr+'s code runs it."""

from __future__ import annotations

import math

import pytest
from reference import Weights, cross_entropy, mean, square
from tiny import agree, problem, train


@pytest.mark.parametrize(
    ("fields", "shrinks"), [({"split": "shards:2", "fraction": 1.0, "epochs": 5}, False), ({"split": "iid"}, True)]
)
def test_the_step_is_half_the_ratio_of_norms_and_never_above_one(fields: dict[str, object], shrinks: bool) -> None:
    run = train("exp-min(eps=0.01)", **fields)
    told = problem(run)
    w: Weights = told.initial
    rates = []
    for t, cohort in told.rounds:
        rows = [told.local(w, t, k, cross_entropy) for k in cohort]
        moves = [{n: row[n] - w[n] for n in w} for row in rows]
        move = mean(moves, told.shares(cohort))
        norms = sum(math.sqrt(square(m)) for m in moves) / len(moves)
        rates.append(min(1.0, 0.5 * norms / (math.sqrt(square(move)) + len(moves) * 0.01)))
        w = {n: w[n] + rates[-1] * move[n] for n in w}
    agree(run, w)
    assert all(0.4 < rate <= 1 for rate in rates) and (min(rates) < 1) == shrinks
