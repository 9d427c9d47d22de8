"""FedDr+'s grid: every base method with every regularizer of its equation (1), as recipe strings."""

from __future__ import annotations

from functools import cache

import pytest
from tiny import distance, train

BASES = ("fedavg", "babu", "sphere", "etf", "gela", "dr")
REGULARISERS = ("prox", "kd", "ntd", "ld", "moon", "fd")
# Two rounds, so that last models differ from first ones; three steps, since at the first one teacher and pupil agree.
FIELDS = {"clients": 3, "fraction": 0.7, "rounds": 2, "epochs": 3, "momentum": 0.0, "split": "dirichlet:1"}


@cache
def digest(text: str) -> str:
    run = train(text, **FIELDS)
    assert distance(run) > 1e-5
    return str(run.summary["digest"])


@pytest.mark.parametrize("base", BASES)
def test_every_base_trains_in_its_own_way(base: str) -> None:
    assert [other for other in BASES if digest(other) == digest(base)] == [base]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("regularizer", REGULARISERS)
def test_every_regularizer_is_felt_in_the_convex_form(base: str, regularizer: str) -> None:
    mixed = f"{regularizer}(beta=0.9)"
    assert digest(mixed if base == "fedavg" else f"{base} + {mixed}") != digest(base)


@pytest.mark.parametrize("regularizer", REGULARISERS)
def test_all_of_the_base_and_none_of_the_regularizer_is_the_base(regularizer: str) -> None:
    assert digest(f"dr + {regularizer}(beta=1.0)") == digest("dr")
