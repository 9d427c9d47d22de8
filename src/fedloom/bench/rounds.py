"""Rounds of a recipe, timed: in a folder of its own that is removed afterwards."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.engine.experiment import prepare
from fedloom.engine.resolve import resolve
from fedloom.engine.server.round import Federation
from fedloom.recipe import recipe
from fedloom.runs.federation import federation
from fedloom.runs.folder import create

ENDLESS = {"split": "iid", "lr": 0.01, "bn": "batch", "rounds": 1_000_000}


@dataclass(frozen=True)
class Timed:
    round: float  # median seconds
    ready: float  # seconds from the recipe to the end of the first round
    workers: int
    kernels: str  # as resolved


def timed_rounds(fields: Mapping[str, Any], seconds: float, least: int = 3) -> Timed:
    """Rounds until the time is up, at least some after the first."""

    def measure(fed: Federation, began: float) -> Timed:
        fed.round()
        ready = time.perf_counter() - began
        rounds: list[float] = []
        while len(rounds) < least or time.perf_counter() - began < seconds:
            rounds.append(float(fed.round()["seconds"]))
        return Timed(float(np.median(rounds)), ready, fed.backend.count, fed.experiment.recipe.kernels)

    return with_federation(fields, measure)


def with_federation(fields: Mapping[str, Any], measure: Callable[[Federation, float], Timed]) -> Timed:
    """`measure` is called with a federation at round 0 and the time at which it began to be built."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        experiment, _ = resolve(prepare(recipe({**ENDLESS, **fields})))
        with federation(experiment, create(experiment, Path(folder) / "run")) as fed:
            return measure(fed, began)


def random_data(folder: Path, train: np.ndarray, test: int, classes: int = 10, **more: Any) -> str:
    """An npz file of these inputs with random labels; the last `test` of them are for testing."""
    labels = np.random.default_rng(1).integers(0, classes, len(train))
    path = folder / "random.npz"
    cut = len(train) - test
    np.savez(path, train_x=train[:cut], train_y=labels[:cut], test_x=train[cut:], test_y=labels[cut:], **more)
    return str(path)


def random_images(count: int, shape: tuple[int, int, int]) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)
