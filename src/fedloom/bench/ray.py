"""What a round takes on Ray beyond forked workers, per client. $RAY_ADDRESS names a cluster; else Ray is started here."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedloom.bench.figure import Effort, Figure
from fedloom.bench.rounds import random_data, random_images, timed_rounds
from fedloom.errors import FedloomError

CLIENTS = 10
LEAST = 0.001  # milliseconds, where noise hides what Ray adds


def ray(effort: Effort, say: Callable[[str], None]) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        images = random_data(Path(folder), random_images(1010, (32, 32, 3)), 10)
        try:
            yield _added("ray-mlp", "MLP on digits", {"data": "digits", "model": "mlp"}, effort)
            yield _added("ray-lenet", "LeNet, 100 images each", {"data": images, "model": "lenet"}, effort)
        except FedloomError as error:  # Ray is not installed
            say(f"not measured: {error}")


def _added(name: str, what: str, fields: dict[str, Any], effort: Effort) -> Figure:
    given = {**fields, "clients": CLIENTS, "fraction": 1.0, "batch": 20}
    actors = timed_rounds({**given, "workers": "ray"}, effort.seconds / 2)
    forked = timed_rounds(given, effort.seconds / 2)
    title = f"what Ray adds to a round of {CLIENTS} clients, per client: {what}"
    columns = {"forked": f"{forked.round:.3f} s", "Ray": f"{actors.round:.3f} s", "actors": str(actors.workers)}
    return Figure(name, title, max(1000 * (actors.round - forked.round) / CLIENTS, LEAST), "ms", "lower", columns)
