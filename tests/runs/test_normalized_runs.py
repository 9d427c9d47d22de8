"""Runs with normalizers that draw, freeze and learn which round it is: the same bits on any workers, and after a kill."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from folders import check_whole, untimed
from processes import Child, die_at

import fedloom as fl

MAPS = """
from torch import nn

def maps(shape, classes):
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten()), nn.Linear(36, classes)
"""
FIELDS: dict[str, Any] = {
    "model": "maps.py:maps",
    "method": "fednn(tau=0.5, freeze=true, eval_noise=true) + moon",
    "clients": 5,
    "fraction": 0.6,
    "rounds": 4,
    "checkpoint_seconds": 0,
    "eval_batch": 60,
    "eval_clients": 2,
}


def test_workers_and_kills_change_no_bit_of_weights_tests_and_logs() -> None:
    Path("maps.py").write_text(MAPS)
    like = fl.run(FIELDS, workers=1, out="one")
    assert all(set(line["selectors"]) == {"body.0.norm"} for line in like.rounds)
    assert any(value.any() for name, value in like.weights.items() if name.endswith("frozen"))
    two = fl.run(FIELDS, workers=2, out="two")
    assert two.summary["digest"] == like.summary["digest"]
    assert untimed(two.rounds) == untimed(like.rounds)
    assert two.clients == like.clients

    def killed() -> None:
        die_at(45)
        fl.run(FIELDS, workers=1, out="killed")

    assert Child(killed).wait() == -signal.SIGKILL
    assert 0 < Path("killed/rounds.jsonl").read_text().count("\n") < 4
    check_whole(fl.run(resume="killed"), like)


def test_fine_tuning_is_the_same_on_any_workers() -> None:
    Path("maps.py").write_text(MAPS)
    runs = [fl.run({**FIELDS, "rounds": 2}, workers=workers, out=f"workers-{workers}") for workers in (1, 2)]
    first, second = (fl.personalize(run.path, epochs=1, lr=0.05) for run in runs)
    assert first.accuracy == second.accuracy
