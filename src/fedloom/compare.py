"""Several methods on the same clients: a list of runs, done one after the other, skipped where they are done already.

    plan("fedavg; fn @ lr=0.3; dr + fd @ lr=1 epochs=2", seeds=3, fields)

A method may carry settings of its own behind an @, because rates must be tuned per method to compare them fairly.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedloom.engine.folder import RunFolder
from fedloom.engine.setup import prepare
from fedloom.errors import FedloomError
from fedloom.measure.personal import Personal, Tuned
from fedloom.personal import Tuning as FineTuning
from fedloom.personal import personalize_run
from fedloom.recipe import Recipe, assign, recipe
from fedloom.run import Run, Silent, Watcher, resume, start


@dataclass(frozen=True)
class Tuning:
    """How personal accuracy is taken: fine-tuning with a share of the method's own rate."""

    part: Tuned = "full"
    epochs: int = 5
    rate_share: float = 0.1


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    row: str  # what the table calls it
    seed: int
    recipe: Recipe


@dataclass(frozen=True)
class Result:
    cell: Cell
    run: Run
    personal: Personal | None

    def values(self) -> dict[str, float]:
        """The numbers that a table shows, as fractions, seconds and bytes."""
        summary = self.run.summary
        found = {
            "global": float(summary["test_accuracy"]),
            "client": float(summary["client_accuracy"]["mean"]),
            "seconds": summary["seconds"] / summary["rounds"],
            "bytes": (summary["bytes_down"] + summary["bytes_up"]) / summary["rounds"],
            "lost": float(summary["lost"]),
        }
        if "personal_accuracy" in summary:  # its clients keep regions of their own
            found["client"] = float(summary["personal_accuracy"]["mean"])
        if self.personal is not None:
            found["personal"] = float(self.personal.personal["mean"])
            found["personal_spread"] = float(self.personal.personal["std"])
            found["worst"] = float(self.personal.personal["worst"])
            found["unseen"] = float(self.personal.unseen[1].get("mean", math.nan))  # nan: every client saw every class
        return found


class CellWatcher(Watcher, Protocol):
    """Looks on at a whole comparison."""

    def cell(self, cell: Cell, number: int, total: int) -> None: ...


@dataclass(frozen=True)
class Comparison:
    """What came out: one row a method, over all its seeds."""

    results: list[Result]
    tuning: Tuning | None

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(result.cell.row for result in self.results))

    def of(self, row: str) -> list[dict[str, float]]:
        return [result.values() for result in self.results if result.cell.row == row]

    def mean(self, row: str, name: str) -> float:
        return statistics.fmean(values[name] for values in self.of(row))

    def deviation(self, row: str, name: str) -> float:
        """Over seeds; 0 for a single one."""
        return statistics.stdev(found) if len(found := [values[name] for values in self.of(row)]) > 1 else 0.0


def plan(methods: str | Sequence[str], seeds: int, fields: Mapping[str, Any]) -> list[Cell]:
    """All cells, checked: every method is made and every split dealt before the first run starts."""
    texts = methods.split(";") if isinstance(methods, str) else list(methods)
    rows = [text.strip() for text in texts if text.strip()]
    if not rows:
        raise FedloomError('methods: none given; write them with semicolons between, as in "fedavg; fn; dr + fd"')
    if len(set(rows)) < len(rows):
        raise FedloomError(f"methods: {next(row for row in rows if rows.count(row) > 1)} stands twice in the list")
    if seeds < 1:
        raise FedloomError(f"seeds: must be 1 or more (got {seeds})")
    base = recipe(fields)
    root = Path(base.out) if base.out else Path("runs") / (base.name or _root_name(base))
    cells = []
    for row in rows:
        text, _, settings = row.partition("@")
        changed = base.model_dump()
        for setting in re.split(r"[\s,]+", settings.strip()):
            if setting:
                assign(changed, setting)
        for seed in range(base.seed, base.seed + seeds):
            out = root / _slug(row) / f"seed{seed}"
            cells.append(Cell(row, seed, recipe({**changed, "method": text.strip(), "seed": seed, "out": str(out)})))
    for cell in cells[::seeds]:
        prepare(cell.recipe)
    return cells


def compare_cells(cells: Sequence[Cell], tuning: Tuning | None, watcher: CellWatcher | None = None) -> Comparison:
    results = []
    for number, cell in enumerate(cells):
        if watcher:
            watcher.cell(cell, number, len(cells))
        done = _run(cell, watcher or Silent())
        results.append(Result(cell, done, _personal(cell, done, tuning) if tuning else None))
    return Comparison(results, tuning)


def _run(cell: Cell, watcher: Watcher) -> Run:
    """A finished cell is read, an interrupted one carried on, a new one started."""
    assert cell.recipe.out is not None
    folder = RunFolder(cell.recipe.out)
    if not folder.recipe_yaml.exists():
        return start(cell.recipe, watcher)
    if folder.recipe().digest() != prepare(cell.recipe).told().digest():
        raise FedloomError(f"out: {folder.path} holds a run of another recipe; choose another --name or --out")
    return resume(folder.path, watcher, cell.recipe.lanes)


def _personal(cell: Cell, done: Run, tuning: Tuning) -> Personal:
    return personalize_run(done, [FineTuning(tuning.part, tuning.epochs, tuning.rate_share * cell.recipe.lr)])[0]


def _root_name(base: Recipe) -> str:
    return _slug(f"compare {Path(base.data.name).stem} {base.split} {base.model}")


def _slug(text: str) -> str:
    """A folder's name that differs where the text does, but for spaces and brackets."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "-", re.sub(r"\s*([+,;])\s*", r"\1", text)).strip("-")
