"""Tuning: trials a minute, each to its last round, one per core."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedloom.bench.figure import Effort, Figure
from fedloom.bench.rounds import random_data, random_images
from fedloom.errors import FedloomError
from fedloom.studies.tune.budget import Budget
from fedloom.studies.tune.carry_out import carry_out
from fedloom.studies.tune.plan import plan

RANGE = {"lr": "log:0.01..0.3"}


def tuning(effort: Effort, say: Callable[[str], None]) -> Iterator[Figure]:
    try:
        digits = {"data": "digits", "model": "mlp", "rounds": 20}
        yield _trials("tuning-digits", "MLP on digits, 20 rounds", digits, 6 if effort.quick else 24)
        if effort.quick:
            return
        with tempfile.TemporaryDirectory() as folder:
            data = random_data(Path(folder), random_images(5010, (32, 32, 3)), 10)
            lenet = {"data": data, "model": "lenet", "rounds": 3}
            yield _trials("tuning-lenet", "LeNet on 5,000 images of 32x32, 3 rounds", lenet, 4)
    except FedloomError as error:  # Optuna is not installed
        say(f"not measured: {error}")


def _trials(name: str, title: str, fields: Mapping[str, Any], trials: int) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        given = {**fields, "split": "iid", "clients": 20, "out": f"{folder}/tune"}
        planned = plan("fedavg", given, RANGE, Budget(trials=trials), halving=False)
        began = time.perf_counter()
        carry_out(planned, None)
        return Figure(name, title, 60 * trials / (time.perf_counter() - began), "trials/min")
