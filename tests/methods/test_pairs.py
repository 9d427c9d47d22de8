"""Every pair of parts either trains, both taking part, or is refused with a reason."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Any

import pytest
from test_method import fedloom_parts
from tiny import distance, train

from fedloom import FedloomError, Run, method

NAMES = [part.name for part in fedloom_parts()]
FIELDS: dict[str, Any] = {"batch": 64, "epochs": 2, "rounds": 2, "lr": 0.1}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The outcome of each part by itself, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("alone")

    @cache
    def run(name: str) -> Run:
        return train(name, out=str(folder / name), **FIELDS)

    return run


def refused(text: str) -> str | None:
    """Why this sum cannot be, if it cannot."""
    try:
        train(text, rounds=1, epochs=1, fraction=0.2)
    except FedloomError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("one", "other"), list(combinations(NAMES, 2)), ids=" + ".join)
def test_a_pair_trains_or_is_refused_with_a_reason(one: str, other: str, alone: Any) -> None:
    text = f"{one} + {other}"
    try:
        run = train(text, **FIELDS)
    except FedloomError as error:
        said = str(error)
        assert "Traceback" not in said, said
        assert said.startswith("method: ") and said.endswith("; keep one"), said
        assert one in said and other in said, said
        return
    assert all(line["train_loss"] is not None and line["lost"] == 0 for line in run.rounds)
    assert all(bool(tensor.isfinite().all()) for tensor in run.weights.values())
    assert distance(run) > 1e-4
    digest = run.summary["digest"]
    for name in (one, other):
        assert digest != alone(name).summary["digest"], f"{text} is no different from {name}"


@pytest.mark.parametrize(("one", "other"), list(combinations(NAMES, 2)), ids=" + ".join)
def test_a_pair_is_refused_in_either_order_or_in_none(one: str, other: str) -> None:
    try:
        method(f"{one} + {other}")
    except FedloomError:
        with pytest.raises(FedloomError):
            method(f"{other} + {one}")
    else:
        method(f"{other} + {one}")


def test_all_of_the_parts_that_fit_together_train_together(alone: Any) -> None:
    run = train("prox(mu=0.1) + scaffold + nova + dr + fd", **FIELDS)
    assert distance(run) > 1e-4
    assert run.rounds[-1]["train_loss"] < alone("dr").rounds[0]["train_loss"]
