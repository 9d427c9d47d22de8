"""The interface of a tracker, the known trackers, and the callback that calls them."""

from __future__ import annotations

import importlib.util
import numbers
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fedloom.engine.experiment import Experiment
from fedloom.engine.server.callback import RunCallback
from fedloom.errors import FedloomError, shown
from fedloom.extras import install
from fedloom.recipe import Recipe
from fedloom.track import trackers

NOT_LOGGED = ("round", "cohort", "work", "lost_clients")


class Tracker(Protocol):
    """Created with (folder, recipe, number of rounds already done)."""

    def log(self, round: int, values: Mapping[str, float]) -> None: ...
    def close(self, summary: Mapping[str, float] | None) -> None: ...


KNOWN: dict[str, tuple[str, Callable[[Path, Recipe, int], Tracker]]] = {
    "tensorboard": ("tensorboard", trackers.TensorBoard),
    "mlflow": ("mlflow", trackers.MLflow),
    "wandb": ("wandb", trackers.WandB),
}


def check(track: str | None) -> list[str]:
    """The trackers that a recipe names. A missing package is refused before anything is written."""
    names = [name.strip() for name in (track or "").split(",") if name.strip()]
    for name in names:
        if name not in KNOWN:
            raise FedloomError(
                f"track: {shown(name)} is unknown; allowed are {', '.join(KNOWN)}, or several separated by commas"
            )
        if importlib.util.find_spec(KNOWN[name][0]) is None:
            raise FedloomError(f"track: {name} is not installed; install it with: {install('track')}")
    return names


class Tracking(RunCallback):
    """All trackers that a recipe names, for one run."""

    def __init__(self, recipe: Recipe, report: Callable[[str], None]) -> None:
        self.recipe, self.report = recipe, report
        self.open: dict[str, Tracker] = {}

    def run_started(self, experiment: Experiment, folder: Path, rounds_done: int) -> None:
        for name in check(self.recipe.track):
            try:
                self.open[name] = KNOWN[name][1](folder, self.recipe, rounds_done)
            except Exception as error:
                self.report(f"tracking with {name} could not be started: {type(error).__name__}: {error}")

    def round_ended(self, line: Mapping[str, Any]) -> None:
        values = flatten({name: value for name, value in line.items() if name not in NOT_LOGGED})
        self._each(lambda tracker: tracker.log(int(line["round"]), values))

    def run_ended(self, summary: Mapping[str, Any] | None) -> None:
        values = None
        if summary is not None:
            values = flatten({k: v for k, v in summary.items() if k not in ("versions", "machine")})
        self._each(lambda tracker: tracker.close(values))
        self.open.clear()

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name in list(self.open):
            try:
                call(self.open[name])
            except Exception as error:  # a failing tracker must not stop the run
                del self.open[name]
                self.report(f"tracking with {name} has stopped: {type(error).__name__}: {error}")


def flatten(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of nested values by path, such as domain_accuracy/photo and selectors/body.0/1."""
    numbers_by_path: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            numbers_by_path |= {f"{name}/{inner}": item for inner, item in flatten(value).items()}
        elif isinstance(value, list):
            numbers_by_path |= {
                f"{name}/{inner}": item for inner, item in flatten({str(i): v for i, v in enumerate(value)}).items()
            }
        elif isinstance(value, numbers.Real) and not isinstance(value, bool):
            numbers_by_path[name] = float(value)
    return numbers_by_path
