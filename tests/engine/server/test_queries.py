"""A query to all clients leaves the state of the round's own clients as it is."""

from __future__ import annotations

from folders import remembered
from torch import Tensor

import fedloom as fl
from fedloom.io.files import read_tensors


def memories(run: fl.Run) -> dict[str, dict[str, Tensor]]:
    place = run.path / "checkpoints" / "clients"
    return {name: read_tensors(place / name)[0] for name in remembered(run.path)}


def test_clients_remember_the_same_with_and_without_a_query_after_the_last_round() -> None:
    fields = {"clients": 10, "fraction": 0.3, "rounds": 2, "workers": 1, "eval_every": 0}
    plain = memories(fl.run(fields, method="sphere + scaffold"))
    asked = memories(fl.run(fields, method="sphere(calibrate=true) + scaffold"))
    assert plain.keys() == asked.keys() and len(plain) > 3
    for name, tensors in plain.items():
        for key, value in tensors.items():
            assert asked[name][key].equal(value), (name, key)
            assert value.count_nonzero()
