"""The one small interface, and who speaks it."""

from __future__ import annotations

import importlib.util
import numbers
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fedloom.errors import FedloomError, shown
from fedloom.recipe import Recipe
from fedloom.track import trackers

UNTOLD = ("round", "cohort", "lost_clients")


class Tracker(Protocol):
    """Made with (folder, recipe, rounds already done)."""

    def log(self, round: int, values: Mapping[str, float]) -> None: ...
    def close(self, summary: Mapping[str, float] | None) -> None: ...


KNOWN: dict[str, tuple[str, Callable[[Path, Recipe, int], Tracker]]] = {
    "tensorboard": ("tensorboard", trackers.TensorBoard),
    "mlflow": ("mlflow", trackers.MLflow),
    "wandb": ("wandb", trackers.WandB),
}


def check(track: str | None) -> list[str]:
    """The trackers that a recipe names; a package that is missing is said before anything is written."""
    names = [name.strip() for name in (track or "").split(",") if name.strip()]
    for name in names:
        if name not in KNOWN:
            raise FedloomError(
                f"track: {shown(name)} is unknown; allowed are {', '.join(KNOWN)}, or several with commas"
            )
        if importlib.util.find_spec(KNOWN[name][0]) is None:
            raise FedloomError(f'track: {name} is not installed; get it with: pip install "fedloom[track]"')
    return names


@dataclass
class Tracking:
    """All trackers of one run."""

    note: Callable[[str], None]
    open: dict[str, Tracker] = field(default_factory=dict)

    def round(self, line: Mapping[str, Any]) -> None:
        values = flat({name: value for name, value in line.items() if name not in UNTOLD})
        self._each(lambda tracker: tracker.log(int(line["round"]), values))

    def close(self, summary: Mapping[str, Any] | None) -> None:
        told = None if summary is None else flat({k: v for k, v in summary.items() if k not in ("versions", "machine")})
        self._each(lambda tracker: tracker.close(told))
        self.open.clear()

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name in list(self.open):
            try:
                act(self.open[name])
            except Exception as error:  # whatever is wrong with it, the run is worth more than its diary
                del self.open[name]
                self.note(f"tracking with {name} has stopped: {type(error).__name__}: {error}")


@contextmanager
def tracking(recipe: Recipe, folder: Path, done: int, note: Callable[[str], None]) -> Iterator[Tracking]:
    """Trackers for the length of a block; closed without a summary if it ends early."""
    found = Tracking(note)
    for name in check(recipe.track):
        try:
            found.open[name] = KNOWN[name][1](folder, recipe, done)
        except Exception as error:
            note(f"tracking with {name} could not be started: {type(error).__name__}: {error}")
    try:
        yield found
    finally:
        found.close(None)


def flat(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of nested values by path: domain_accuracy/photo, selectors/body.0/1."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{inner}": item for inner, item in flat(value).items()}
        elif isinstance(value, list):
            found |= {f"{name}/{inner}": item for inner, item in flat({str(i): v for i, v in enumerate(value)}).items()}
        elif isinstance(value, numbers.Real) and not isinstance(value, bool):
            found[name] = float(value)
    return found
