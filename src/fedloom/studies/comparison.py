"""The results of a comparison, by method, swept setting and seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.errors import FedloomError, shown
from fedloom.evaluation.fine_tuned import PersonalizationResult
from fedloom.io.html import html_table
from fedloom.runs.figures import curves_figure
from fedloom.runs.frames import frame_of, plain_line
from fedloom.runs.names import metric_named
from fedloom.runs.run import Evaluated, Run
from fedloom.studies.cells import Cell, Point, RelativeFineTuning
from fedloom.studies.tune.fresh import Tuning

if TYPE_CHECKING:
    from pandas import DataFrame

TITLES = {"global": "global model", "client": "on clients' data", "personal": "after fine-tuning"}


@dataclass(frozen=True, repr=False)
class Result:
    """One run of a comparison."""

    cell: Cell
    run: Run
    personal: PersonalizationResult | None
    failure: str | None = None  # why there are no values

    def __repr__(self) -> str:
        return f"Result({self.cell.title}: {self.failure or self.run!r})"

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


def _rest(result: Result) -> dict[str, Any]:
    return {"folder": str(result.run.path), "failure": result.failure}


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


@dataclass(frozen=True, repr=False)
class Comparison:
    """The results of `fl.compare` or `fl.sweep`: one row per method, one column per point of the swept values, over all seeds.

    >>> comparison
    Comparison('runs/both': 2 methods, 1 seed; accuracy in %: fedavg ..., fn ...)
    >>> comparison.rows
    ['fedavg', 'fn']
    >>> comparison.mean("fn", "global") == comparison.results[1].run.metric("accuracy")
    True
    >>> comparison.frame()[["method", "seed", "global"]].shape
    (2, 3)
    >>> comparison.plot().write_html("curves.html")
    """

    results: list[Result]
    fine_tuning: RelativeFineTuning | None
    root: Path = Path("runs")
    labels: Mapping[str, str] = field(default_factory=dict)  # display names of rows that have one
    tuning: Tuning | None = None  # where the rows' settings come from

    def __repr__(self) -> str:
        settings = f" x {len(self.points)} settings" if self.points != [()] else ""
        seeds = f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"
        metric = metric_named(self.metrics[0])
        values = ", ".join(" ".join(cells[:2]) for cells in self._table())
        count = f"{len(self.rows)} method{'s' if len(self.rows) > 1 else ''}"
        return f"Comparison('{self.root}': {count}{settings}, {seeds}; {metric.heading}: {values})"

    def _repr_html_(self) -> str:
        known = [values for row in self.rows for values in self.of(row)]
        columns = [TITLES[name] for name in self._columns(known)]
        over = f", mean ± deviation over {len(self.seeds)} seeds" if len(self.seeds) > 1 else ", one seed"
        note = f"{self.root}; {len(self.failures)} runs failed" if self.failures else str(self.root)
        title = f"{metric_named(self.metrics[0]).heading}{over}"
        return html_table(title, ["method", *columns, "s/round"], self._table(), note)

    def _columns(self, known: list[dict[str, float]]) -> list[str]:
        return [name for name in TITLES if known and all(name in values for values in known)] or ["global"]

    def _table(self) -> list[list[str]]:
        """A line per method and setting: its name, the headline metric in every column, seconds per round."""
        metric, several = metric_named(self.metrics[0]), len(self.seeds) > 1
        columns, lines = self._columns([values for row in self.rows for values in self.of(row)]), []
        for row in self.rows:
            for point in self.points:
                name = " ".join([self.label(row), *(f"{field}={value}" for field, value in point)])
                if not self.of(row, point):
                    lines.append([name, "failed", *("-" for _ in columns)])
                    continue
                texts = [
                    metric.text(self.mean(row, key, point), self.deviation(row, key, point) if several else None)
                    for key in columns
                ]
                lines.append([name, *texts, f"{self.mean(row, 'seconds', point):.3f}"])
        return lines

    def frame(self) -> DataFrame:
        """A row per run of a pandas data frame: method, swept values, seed, and what the table shows, as shares."""
        return frame_of([{**self._names(result), **result.values(), **_rest(result)} for result in self.results])

    def rounds_frame(self) -> DataFrame:
        """The rounds of all runs as one pandas data frame, with method, swept values and seed in front."""
        done = [result for result in self.results if result.failure is None]
        return frame_of([{**self._names(result), **plain_line(line)} for result in done for line in result.run.rounds])

    def plot(self, metric: str | None = None, of: Evaluated = "test") -> Any:
        """A plotly figure of a metric over the rounds: one line per method and setting, the mean over seeds, with a band of
        one standard deviation. `.write_html(PATH)` saves it."""
        curves: dict[str, list[dict[int, float | None]]] = {}
        for result in self.results:
            if result.failure is None:
                name = " ".join(
                    [self.label(result.cell.row), *(f"{field}={value}" for field, value in result.cell.point)]
                )
                curves.setdefault(name, []).append(result.run.curve(metric, of))
        recipe = self.results[0].cell.recipe
        return curves_figure(f"{recipe.data.name}, {recipe.split}", metric or self.metrics[0], curves)

    def _names(self, result: Result) -> dict[str, Any]:
        label = {"label": self.label(result.cell.row)} if self.labels else {}
        return {"method": result.cell.row, **label, **dict(result.cell.point), "seed": result.cell.seed}

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
