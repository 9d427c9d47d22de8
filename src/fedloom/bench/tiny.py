"""Rounds per second of a tiny net, where starting operations takes most of the time: eager and vmapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fedloom.bench.figure import Effort, Figure
from fedloom.bench.rounds import timed_rounds

FIELDS = {"data": "digits", "model": "mlp", "clients": 200, "fraction": 0.25, "epochs": 5, "batch": 10}


def tiny(effort: Effort, _: Callable[[str], None]) -> Iterator[Figure]:
    for name, vmap in (("eager", "off"), ("vmapped", 32)):
        timed = timed_rounds({**FIELDS, "vmap": vmap}, effort.seconds / 4, 3 if effort.quick else 10)
        title = f"MLP 8x8, 50 clients x 7, 5 epochs, batch 10, {name}"
        yield Figure(f"tiny-{name}", title, 1 / timed.round, "rounds/s")
