"""The results of a comparison, by method, swept setting and seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError, shown
from fedloom.evaluation.fine_tuned import PersonalizationResult
from fedloom.runs.cells import Cell, Point, RelativeFineTuning
from fedloom.runs.run import Run
from fedloom.runs.tune.fresh import Tuning


@dataclass(frozen=True)
class Result:
    cell: Cell
    run: Run
    personal: PersonalizationResult | None
    failure: str | None = None  # why there are no values

    def values(self) -> dict[str, float]:
        """The numbers that a table shows, as fractions, seconds and bytes; none of a cell that failed."""
        return dict(self._values)

    @cached_property
    def _values(self) -> dict[str, float]:
        if self.failure is not None:
            return {}
        summary = self.run.summary
        headline, *others = self.cell.recipe.metrics
        by_metric = {metric: self._of_metric(metric, summary) for metric in (headline, *others)}
        first = by_metric[headline]
        values = {
            "global": first.pop("global"),
            "client": first.pop("client"),
            "seconds": summary["seconds"] / summary["rounds"],
            "bytes": (summary["bytes_down"] + summary["bytes_up"]) / summary["rounds"],
            "lost": float(summary["lost"]),
            **first,
        }
        for metric in others:
            values |= {column(name, metric, headline): value for name, value in by_metric[metric].items()}
        return values

    def _of_metric(self, metric: str, summary: Mapping[str, Any]) -> dict[str, float]:
        """Its values by column; NaN where it is undefined."""
        # of methods whose clients have models of their own, these are shown
        clients = summary.get(f"personal_{metric}", summary[f"client_{metric}"])
        values = {"global": _number(summary[f"test_{metric}"]), "client": _number(clients.get("mean"))}
        if "best_by_validation" in summary:
            values["validation"] = _number(self.run.rounds[-1].get(f"validation_{metric}"))
        if self.personal is not None:
            tuned = self.personal.of(metric)
            values["personal"] = _number(tuned.personal.get("mean"))
            values["personal_spread"] = _number(tuned.personal.get("std"))
            values["worst"] = _number(tuned.personal.get("worst"))
            values["unseen"] = _number(tuned.unseen[1].get("mean"))  # NaN: every client saw every class
        return values


def column(name: str, metric: str, headline: str) -> str:
    """The name of a value in tables and files: global, client ... of the headline, global_macro_f1 ... of the others."""
    return name if metric == headline else f"{name}_{metric}"


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


@dataclass(frozen=True)
class Comparison:
    """The results: one row per method, one column per point of the swept values, over all seeds."""

    results: list[Result]
    fine_tuning: RelativeFineTuning | None
    root: Path = Path("runs")
    labels: Mapping[str, str] = field(default_factory=dict)  # display names of rows that have one
    tuning: Tuning | None = None  # where the rows' settings come from

    def label(self, row: str) -> str:
        """What tables call a row."""
        return self.labels.get(row, row)

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
    def metrics(self) -> tuple[str, ...]:
        """The first is the headline: that of `mean(row, "global")`."""
        return self.results[0].cell.recipe.metrics

    def metric(self, row: str, name: str, of: str = "global", point: Point | None = None) -> float:
        """Mean over seeds of a metric: `metric("fedavg", "macro_f1", of="client")`."""
        if name not in self.metrics:
            raise FedloomError(f"metrics: the comparison has no {shown(name)}; it has {', '.join(self.metrics)}")
        return self.mean(row, column(of, name, self.metrics[0]), point)

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
