"""A finished comparison or sweep as a file: `comparison.json` in its folder, which `fl.load` reads.

The numbers stay in the run folders; the file says which runs belong together, and what their methods are called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError
from fedloom.evaluation.fine_tuned import PersonalizationResult
from fedloom.finished.personalize import stored
from fedloom.io.files import read_json, write_json
from fedloom.recipe import recipe
from fedloom.runs.folder import RunFolder
from fedloom.runs.run import Run
from fedloom.studies.cells import Cell, RelativeFineTuning
from fedloom.studies.comparison import Comparison, Result
from fedloom.studies.tune.chosen import read as read_tuned
from fedloom.studies.tune.fresh import Tuning

FILE = "comparison.json"


def write_comparison(comparison: Comparison) -> Path:
    """Write the file, unless it is there with the same content."""
    tuning = comparison.tuning
    content = {
        "results": [_stored_result(result, comparison.root) for result in comparison.results],
        "fine_tuning": asdict(comparison.fine_tuning) if comparison.fine_tuning else None,
        "labels": dict(comparison.labels),
        "tuning": None
        if tuning is None
        else {
            "folder": os.path.relpath(tuning.folder, comparison.root),
            "chosen": {row: item.method for row, item in tuning.chosen.items()},
            "diverged": [item.method for item in tuning.diverged],
            "changed": list(tuning.changed),
            "validation": tuning.validation,
        },
    }
    path = comparison.root / FILE
    if read_json(path) != content:
        write_json(path, content)
    return path


def read_comparison(root: Path) -> Comparison:
    content = read_json(root / FILE)
    try:
        tuning = content["fine_tuning"] and RelativeFineTuning(**content["fine_tuning"])
        results = [_result(item, root, tuning) for item in content["results"]]
        return Comparison(results, tuning, root, content["labels"], _tuning(content["tuning"], root))
    except (KeyError, TypeError, AttributeError):
        raise FedloomError(
            f"{root / FILE} is damaged; the call that wrote it reads the runs and writes it again"
        ) from None


def _stored_result(result: Result, root: Path) -> dict[str, Any]:
    item = {
        "method": result.cell.row,
        "seed": result.cell.seed,
        "point": [list(pair) for pair in result.cell.point],
        "folder": os.path.relpath(result.run.path, root),
        "failure": result.failure,
    }
    if result.failure is not None:  # there may be no folder
        item["recipe"] = result.cell.recipe.model_dump(mode="json")
    return item


def _result(item: Mapping[str, Any], root: Path, tuning: RelativeFineTuning | None) -> Result:
    run = Run(root / item["folder"])
    used = recipe(item["recipe"]) if "recipe" in item else run.recipe
    cell = Cell(item["method"], item["seed"], used, tuple((field, value) for field, value in item["point"]))
    failure = item["failure"]
    return Result(cell, run, _personal(cell, run, tuning) if failure is None else None, failure)


def _personal(cell: Cell, run: Run, tuning: RelativeFineTuning | None) -> PersonalizationResult | None:
    if tuning is None:
        return None
    rate, digest = tuning.rate_share * cell.recipe.lr, run.summary["digest"]
    folder = RunFolder(run.path)
    return stored(folder, tuning.part, tuning.epochs, rate, "method", digest, metrics=cell.recipe.metrics)


def _tuning(item: Mapping[str, Any] | None, root: Path) -> Tuning | None:
    if item is None:
        return None
    folder = Path(os.path.normpath(root / item["folder"]))
    tuned = read_tuned(folder)
    by_name = {chosen.method: chosen for chosen in tuned.methods}
    chosen = {row: by_name[name] for row, name in item["chosen"].items()}
    diverged = tuple(by_name[name] for name in item["diverged"])
    return Tuning(folder, tuned, chosen, diverged, tuple(item["changed"]), item["validation"])
