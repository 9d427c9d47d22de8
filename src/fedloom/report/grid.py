"""A comparison or a sweep as tables: methods as rows, swept values as columns, as in papers.

Each metric of the recipe has a table of its own, the headline first. Bold is the best mean of a column (of the row, if there
is one method): the highest, or the lowest of a metric such as loss. In a grid a star marks each method's selected setting:
selected by the headline on validation samples if there are any, otherwise on test samples, and the notes say which.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedloom.evaluation.metrics import Metric, find_metric
from fedloom.io.files import write
from fedloom.report.sheet import Sheet, SheetEntry, latex, markdown
from fedloom.report.significance import note
from fedloom.report.table import comparison_legend
from fedloom.runs.cells import Point
from fedloom.runs.comparison import Comparison, column

WIDEST = 6  # columns of values in one table, at most
TITLES = {"global": "global", "validation": "validation", "client": "clients", "personal": "personal"}
TITLES |= {"worst": "worst", "unseen": "unseen"}
JUDGED = ("global", "client", "personal")  # columns with a standard deviation and a best value


def sheets(comparison: Comparison) -> list[Sheet]:
    """One table per metric; for a wide grid, one per value of the first field. The last one has the notes."""
    make = _comparison if comparison.points == [()] else _grids
    tables = [sheet for name in comparison.metrics for sheet in make(comparison, find_metric(name))]
    last = tables[-1]
    return [*tables[:-1], Sheet(last.title, last.columns, last.rows, notes(comparison))]


def save(comparison: Comparison) -> list[Path]:
    """Write table.md, table.tex, table.csv (a line per method and setting) and cells.csv (a line per run)."""
    tables = sheets(comparison)
    texts = {
        "table.md": markdown(tables),
        "table.tex": latex(tables),
        "table.csv": _means(comparison),
        "cells.csv": _runs(comparison),
    }
    for name, text in texts.items():
        path = comparison.root / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write(path, text)
    return [comparison.root / name for name in texts]


def notes(comparison: Comparison) -> list[str]:
    """The notes below the table."""
    chosen, headline = choice(comparison), find_metric(comparison.metrics[0])
    texts = [] if comparison.points != [()] else [comparison_legend(comparison)]
    if comparison.points != [()]:
        by = "validation" if _validated(comparison) else "test"
        best = "; ".join(
            f"{row} at {_label(point)}: {_value(comparison, headline, row, point)}" for row, point in chosen.items()
        )
        caution = ""
        if not _validated(comparison):
            caution = " So the numbers are optimistic; hold out validation data with --set data.validation=0.1."
        texts.append(f"* selected for its method by mean {by} {headline.title} after the last round. {best}.{caution}")
    texts.append(_significance(comparison, chosen))
    for result in comparison.failures:
        texts.append(f"Failed: {result.cell.title}: {str(result.failure).splitlines()[0]}")
    return [text for text in texts if text]


def choice(comparison: Comparison) -> dict[str, Point]:
    """Each method's best setting: by the headline on validation samples if there are any, otherwise on test samples."""
    name, headline = "validation" if _validated(comparison) else "global", find_metric(comparison.metrics[0])
    chosen: dict[str, Point] = {}
    for row in comparison.rows:
        for point in (point for point in comparison.points if comparison.of(row, point)):
            before = comparison.mean(row, name, chosen[row]) if row in chosen else math.nan
            if math.isnan(before) or headline.is_better(comparison.mean(row, name, point), before):
                chosen[row] = point
    return chosen


def _validated(comparison: Comparison) -> bool:
    return all("validation" in result.values() for result in comparison.results if result.failure is None)


def _significance(comparison: Comparison, chosen: Mapping[str, Point]) -> str:
    if len(chosen) < 2:
        return ""
    headline, known = find_metric(comparison.metrics[0]), {}
    for row, point in chosen.items():
        by_seed = {seed: values["global"] for (seed, _), values in comparison.by_seed(row, point).items()}
        if not any(math.isnan(value) for value in by_seed.values()):
            known[row] = by_seed
    if len(known) < 2:
        return ""
    means = {row: comparison.mean(row, "global", chosen[row]) for row in known}
    best = next(row for row, mean in means.items() if mean == headline.best(list(means.values())))
    text = note(best, known, headline)
    return f"Each method at its chosen setting. {text}" if text and comparison.points != [()] else text


def _comparison(comparison: Comparison, metric: Metric) -> list[Sheet]:
    first = metric.name == comparison.metrics[0]

    def key(name: str) -> str:
        return column(name, metric.name, comparison.metrics[0])

    known = [values for row in comparison.rows for values in comparison.of(row)]
    names = [name for name in TITLES if known and all(key(name) in values for values in known)] or ["global"]
    rounded = {
        name: {row: round(comparison.mean(row, key(name)), 4) for row in comparison.rows if comparison.of(row)}
        for name in names
    }
    best = {name: metric.best(list(means.values())) for name, means in rounded.items()}
    costs = [("s/round",), ("MB/round",)] if first else []
    rows = []
    for row in comparison.rows:
        cells = [SheetEntry(row)]
        if not comparison.of(row):
            rest = len(names) - 1 + len(costs)
            rows.append([*cells, SheetEntry("failed"), *(SheetEntry("") for _ in range(rest))])
            continue
        for name in names:
            bold = len(comparison.rows) > 1 and rounded[name][row] == best[name] and name in JUDGED
            cells.append(SheetEntry(_value(comparison, metric, row, (), name), bold))
        if first:
            cells.append(SheetEntry(f"{comparison.mean(row, 'seconds'):.2f}"))
            cells.append(SheetEntry(f"{comparison.mean(row, 'bytes') / 1e6:.2f}"))
        rows.append(cells)
    columns = [("method",), *((TITLES[name],) for name in names), *costs]
    return [Sheet(_over(comparison, metric), columns, rows)]


def _grids(comparison: Comparison, metric: Metric) -> list[Sheet]:
    fields = [field for field, _ in comparison.points[0]]
    wide = len(comparison.points) > WIDEST and len(fields) > 1
    groups: dict[Point, list[Point]] = {}
    for point in comparison.points:
        groups.setdefault(point[:1] if wide else (), []).append(point)
    return [_grid(comparison, metric, apart, points) for apart, points in groups.items()]


def _grid(comparison: Comparison, metric: Metric, apart: Point, points: Sequence[Point]) -> Sheet:
    chosen, key = choice(comparison), column("global", metric.name, comparison.metrics[0])
    means = {
        (row, point): round(comparison.mean(row, key, point), 4)
        for row in comparison.rows
        for point in points
        if comparison.of(row, point)
    }
    single = len(comparison.rows) == 1
    columns: list[tuple[str, ...]] = [("method",)]
    columns += [tuple(f"{field}={value}" for field, value in point[len(apart) :]) for point in points]
    best = {
        point: metric.best([mean for (_, other), mean in means.items() if single or other == point]) for point in points
    }
    rows = []
    for row in comparison.rows:
        cells = [SheetEntry(row)]
        for point in points:
            if (row, point) not in means:
                cells.append(SheetEntry("failed"))
                continue
            bold = means[row, point] == best[point]
            cells.append(SheetEntry(_value(comparison, metric, row, point), bold, "*" if chosen[row] == point else ""))
        rows.append(cells)
    where = f", {_label(apart)}" if apart else ""
    return Sheet(f"global {_over(comparison, metric)}{where}", columns, rows)


def _over(comparison: Comparison, metric: Metric) -> str:
    seeds = len(comparison.seeds)
    return f"{metric.heading}, " + (f"mean ± deviation over {seeds} seeds" if seeds > 1 else "one seed")


def _value(comparison: Comparison, metric: Metric, row: str, point: Point, name: str = "global") -> str:
    many = len(comparison.seeds) > 1 and name in (*JUDGED, "validation")
    key = column(name, metric.name, comparison.metrics[0])
    mean = comparison.mean(row, key, point)
    if math.isnan(mean):
        return "-"
    text = metric.text(mean, comparison.deviation(row, key, point) if many else None)
    missing = len(comparison.seeds) - len(comparison.of(row, point))
    return f"{text} ({missing} failed)" if missing else text


def _label(point: Point) -> str:
    return " ".join(f"{field}={value}" for field, value in point)


def _means(comparison: Comparison) -> str:
    fields = [field for field, _ in comparison.points[0]]
    names = list(dict.fromkeys(name for result in comparison.results for name in result.values()))
    lines: list[list[object]] = [
        ["method", *fields, "seeds", "failed", *(f"{name}_{kind}" for name in names for kind in ("mean", "deviation"))]
    ]
    for row in comparison.rows:
        for point in comparison.points:
            count = len(comparison.of(row, point))
            line: list[object] = [row, *(value for _, value in point), count, len(comparison.seeds) - count]
            for name in names:
                line += (
                    [comparison.mean(row, name, point), comparison.deviation(row, name, point)] if count else ["", ""]
                )
            lines.append(line)
    return _csv(lines)


def _runs(comparison: Comparison) -> str:
    fields = [field for field, _ in comparison.points[0]]
    names = list(dict.fromkeys(name for result in comparison.results for name in result.values()))
    lines: list[list[object]] = [["method", *fields, "seed", *names, "folder", "failure"]]
    for result in comparison.results:
        values, cell = result.values(), result.cell
        numbers = [values.get(name, "") for name in names]
        line = [cell.row, *(value for _, value in cell.point), cell.seed, *numbers, result.run.path]
        lines.append([*line, (result.failure or "").partition("\n")[0]])
    return _csv(lines)


def _csv(lines: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
