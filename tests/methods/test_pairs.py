"""Every pair of parts either trains, both taking part, or is refused with a reason."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Any

import pytest
from tiny import distance, fedloom_parts, train

from fedloom import FedloomError, Run

PAIRS = [
    pytest.param(one.name, other.name, id=f"{one.name}+{other.name}") for one, other in combinations(fedloom_parts(), 2)
]
FIELDS: dict[str, Any] = {"batch": 64, "epochs": 2, "rounds": 2, "lr": 0.1}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The outcome of each part by itself, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("alone")

    @cache
    def run(name: str) -> Run:
        return train(name, out=str(folder / name), **FIELDS)

    return run


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_pair_trains_or_is_refused_with_a_reason(one: str, other: str, alone: Any) -> None:
    text = f"{one} + {other}"
    try:
        run = train(text, **FIELDS)
    except FedloomError as error:
        said = str(error)
        assert "Traceback" not in said, said
        assert said.startswith("method: ") and len(said.split()) > 6, said
        assert one in said or other in said, said
        with pytest.raises(FedloomError):
            train(f"{other} + {one}", **FIELDS)
        return
    assert all(line["train_loss"] is not None and line["lost"] == 0 for line in run.rounds)
    assert all(bool(tensor.isfinite().all()) for tensor in run.weights.values())
    assert distance(run) > 1e-4
    digest = run.summary["digest"]
    for name in (one, other):
        assert digest != alone(name).summary["digest"], f"{text} is no different from {name}"


def test_all_of_the_parts_that_fit_together_train_together(alone: Any) -> None:
    run = train("prox(mu=0.1) + scaffold + nova + dr + fd", **FIELDS)
    assert distance(run) > 1e-4
    assert run.rounds[-1]["train_loss"] < alone("dr").rounds[0]["train_loss"]
