"""Runs that stop at a round, and runs that evaluate validation samples only: the weights are the same."""

from __future__ import annotations

from typing import Any

import pytest

import fedloom as fl
from fedloom.recipe import recipe
from fedloom.runs.folder import RunFolder
from fedloom.runs.run import resume, start

FIELDS: dict[str, Any] = {
    "clients": 5,
    "rounds": 4,
    "workers": 1,
    "eval_every": 0,
    "schedule": "cosine",
    "data": {"validation": 0.2, "validation_from": "clients"},
}


@pytest.mark.parametrize("method", ["fedper", "fedavg"])
def test_stopping_at_rounds_and_skipping_the_test_changes_no_bit(method: str) -> None:
    whole = fl.run(FIELDS, method=method, out="whole")
    stopped = recipe({**FIELDS, "method": method, "eval_test": False, "out": "stopped"})
    start(stopped, until=1)
    assert not RunFolder("stopped").finished
    resume("stopped", until=3)
    done = resume("stopped")
    assert done.summary["digest"] == whole.summary["digest"]
    assert [line["round"] for line in done.rounds if "validation_accuracy" in line] == [1, 3, 4]
    names = ["validation_accuracy", *(["personal_validation_accuracy"] if method == "fedper" else [])]
    assert [done.rounds[-1][name] for name in names] == [whole.rounds[-1][name] for name in names]
    assert not [name for line in done.rounds for name in line if "test" in name or "client_" in name]
    assert "personal_validation_accuracy" in done.rounds[-1] or method == "fedavg"
