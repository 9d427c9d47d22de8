"""Evaluation: test images per second."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from fedloom.bench.figure import Effort, Figure
from fedloom.bench.rounds import Timed, random_data, random_images, with_federation
from fedloom.engine.server.round import Federation
from fedloom.evaluation.global_model import evaluate_global

IMAGES = 2000


def evaluation(effort: Effort, _: Callable[[str], None]) -> Iterator[Figure]:
    def measure(fed: Federation, began: float) -> Timed:
        evaluate_global(fed)
        ready = time.perf_counter() - began
        seconds: list[float] = []
        while len(seconds) < 3 or time.perf_counter() - began < effort.seconds / 4:
            before = time.perf_counter()
            evaluate_global(fed)
            seconds.append(time.perf_counter() - before)
        return Timed(median(seconds), ready, fed.backend.count, fed.experiment.recipe.kernels)

    with tempfile.TemporaryDirectory() as folder:
        data = random_data(Path(folder), random_images(100 + IMAGES, (32, 32, 3)), IMAGES)
        fields = {"data": data, "clients": 10, "model": "lenet", "precision": effort.precision}
        timed = with_federation(fields, measure)
    yield Figure("evaluation", "LeNet 32x32, 2,000 test images", IMAGES / timed.round, "samples/s")
