"""A survey of all clients leaves what the round's own clients remember as it is."""

from __future__ import annotations

from folders import remembered
from torch import Tensor

import fedloom as fl
from fedloom.engine.files import read_tensors


def memories(run: fl.Run) -> dict[str, dict[str, Tensor]]:
    place = run.path / "checkpoints" / "clients"
    return {name: read_tensors(place / name)[0] for name in remembered(run.path)}


def test_clients_remember_the_same_with_and_without_a_survey_after_the_last_round() -> None:
    fields = {"clients": 10, "fraction": 0.3, "rounds": 2, "lanes": 1, "eval_every": 0}
    plain = memories(fl.run(fields, method="sphere + scaffold"))
    surveyed = memories(fl.run(fields, method="sphere(calibrate=true) + scaffold"))
    assert plain.keys() == surveyed.keys() and len(plain) > 3
    for name, tensors in plain.items():
        for key, value in tensors.items():
            assert surveyed[name][key].equal(value), (name, key)
            assert value.count_nonzero()
