"""The results of a comparison, by method, swept setting and seed."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from fedloom.evaluation.personalization import PersonalizationResult
from fedloom.runs.cells import Cell, Point, RelativeFineTuning
from fedloom.runs.run import Run


@dataclass(frozen=True)
class Result:
    cell: Cell
    run: Run
    personal: PersonalizationResult | None
    failure: str | None = None  # why there are no values

    def values(self) -> dict[str, float]:
        """The numbers that a table shows, as fractions, seconds and bytes; none of a cell that failed."""
        if self.failure is not None:
            return {}
        summary = self.run.summary
        values = {
            "global": float(summary["test_accuracy"]),
            "client": float(summary["client_accuracy"]["mean"]),
            "seconds": summary["seconds"] / summary["rounds"],
            "bytes": (summary["bytes_down"] + summary["bytes_up"]) / summary["rounds"],
            "lost": float(summary["lost"]),
        }
        if "best_by_validation" in summary:
            values["validation"] = float(self.run.rounds[-1]["validation_accuracy"])
        if "personal_accuracy" in summary:  # its clients keep regions of their own
            values["client"] = float(summary["personal_accuracy"]["mean"])
        if self.personal is not None:
            values["personal"] = float(self.personal.personal["mean"])
            values["personal_spread"] = float(self.personal.personal["std"])
            values["worst"] = float(self.personal.personal["worst"])
            values["unseen"] = float(self.personal.unseen[1].get("mean", math.nan))  # nan: every client saw every class
        return values


@dataclass(frozen=True)
class Comparison:
    """The results: one row per method, one column per point of the swept values, over all seeds."""

    results: list[Result]
    fine_tuning: RelativeFineTuning | None
    root: Path = Path("runs")

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(result.cell.row for result in self.results))

    @property
    def points(self) -> list[Point]:
        return list(dict.fromkeys(result.cell.point for result in self.results))

    @property
    def seeds(self) -> list[int]:
        return list(dict.fromkeys(result.cell.seed for result in self.results))

    @property
    def failures(self) -> list[Result]:
        return [result for result in self.results if result.failure is not None]

    def of(self, row: str, point: Point | None = None) -> list[dict[str, float]]:
        """The values of every seed that did not fail."""
        return list(self.by_seed(row, point).values())

    def by_seed(self, row: str, point: Point | None = None) -> dict[tuple[int, Point], dict[str, float]]:
        matching = [r for r in self.results if r.cell.row == row and point in (None, r.cell.point)]
        return {(r.cell.seed, r.cell.point): r.values() for r in matching if r.failure is None}

    def mean(self, row: str, name: str, point: Point | None = None) -> float:
        """Over seeds; NaN where all failed."""
        over_seeds = [values[name] for values in self.of(row, point)]
        return statistics.fmean(over_seeds) if over_seeds else math.nan

    def deviation(self, row: str, name: str, point: Point | None = None) -> float:
        """Over seeds; 0 for a single one."""
        over_seeds = [values[name] for values in self.of(row, point)]
        if any(math.isnan(value) for value in over_seeds):
            return math.nan
        return statistics.stdev(over_seeds) if len(over_seeds) > 1 else 0.0
