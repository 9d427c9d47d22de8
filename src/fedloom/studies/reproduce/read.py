"""Our value of a published cell's measure, read from a finished run folder."""

from __future__ import annotations

import math
from typing import Any

from fedloom.errors import FedloomError
from fedloom.io.archives import read_arrays
from fedloom.io.files import read_json
from fedloom.papers import PublishedCell
from fedloom.recipe import Recipe
from fedloom.runs.folder import RunFolder
from fedloom.studies.reproduce.jobs import fine_tuning
from fedloom.studies.reproduce.reuse import stored_curve

SUMMARY = {
    "global": "test_accuracy",
    "clean": "clean_test_accuracy",
    "client": "client_accuracy",
    "own": "personal_accuracy",
}


def value(cell: PublishedCell, recipe: Recipe, folder: RunFolder, tuned_clients: int | None = None) -> float:
    """In percent, or seconds. `tuned_clients`: how many clients are fine-tuned; None: all."""
    summary = read_json(folder.summary) or {}
    kind = cell.measure.kind
    if kind == "seconds":
        return float(summary["seconds"]) / float(summary["rounds"])
    if kind == "tuned":
        tuning = fine_tuning(cell, recipe)
        curve = stored_curve(folder, tuning, tuned_clients) if tuning is not None else None
        if tuning is None or curve is None:
            raise FedloomError(f"{folder.path} has no such fine-tuning")
        return 100 * float(curve[tuning.epochs]["mean"])
    return 100 * accuracy(summary, kind)


def accuracy(summary: dict[str, Any], kind: str) -> float:
    """A share, from the content of summary.json."""
    stored = summary.get(SUMMARY[kind])
    if kind == "clean" and stored is None:
        stored = summary.get(SUMMARY["global"])  # a split without shifts
    number = stored.get("mean") if isinstance(stored, dict) else stored
    if number is None or not math.isfinite(float(number)):
        raise FedloomError(f"the run has no {SUMMARY[kind]}")
    return float(number)


def test_samples(folder: RunFolder) -> int:
    """That all clients hold together."""
    return int(read_arrays(folder.partition, ["test_offsets"])["test_offsets"][-1])
