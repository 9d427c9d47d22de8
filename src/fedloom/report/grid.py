"""A comparison or a sweep as tables: methods as rows, swept values as columns, as in papers.

Each metric of the recipe has a table of its own, the headline first. Bold is the best mean of a column (of the row, if a
grid has one method), and each one that is not significantly worse; see significance.py. In a grid a star marks each method's
selected setting: selected by the headline on validation samples if there are any, otherwise on test samples, and the notes
say which.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedloom.evaluation.metrics import Metric, find_metric
from fedloom.io.files import write, write_json
from fedloom.report import sweep_warnings, tuned_caption
from fedloom.report.sheet import Sheet, SheetEntry, latex, markdown
from fedloom.report.significance import Ranking, note, rank
from fedloom.report.table import comparison_legend
from fedloom.runs import labels
from fedloom.studies.cells import Point, folder_name
from fedloom.studies.comparison import Comparison, column
from fedloom.studies.diverged import stopped_by_divergence

WIDEST = 6  # columns of values in one table, at most
TITLES: dict[str, tuple[str, ...]] = {
    "global": ("global",),
    "validation": ("validation",),
    "client": ("clients",),
    "personal": ("personal",),
    "worst": ("personal", "worst"),
    "unseen": ("personal", "unseen"),
}
JUDGED = ("global", "client", "personal")  # columns with a standard deviation and a best value


def sheets(comparison: Comparison) -> list[Sheet]:
    """One table per metric; for a wide grid, one per value of the first field. The last one has the notes."""
    make = _comparison if comparison.points == [()] else _grids
    tables = [sheet for name in comparison.metrics for sheet in make(comparison, find_metric(name))]
    tables[0] = replace(tables[0], caption=tuned_caption.caption(comparison))
    return [*tables[:-1], replace(tables[-1], notes=notes(comparison))]


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
    _save_labels(comparison)
    return [comparison.root / name for name in texts]


def _save_labels(comparison: Comparison) -> None:
    """For the page, which knows methods by their folders: their order and their names."""
    stored = labels.names_in(comparison.root)
    names = {folder_name(row): comparison.label(row) for row in comparison.rows}
    names |= {folder: name for folder, name in stored.items() if folder not in names}  # methods of an earlier command
    if list(stored.items()) != list(names.items()):
        write_json(comparison.root / labels.FILE, names)


def notes(comparison: Comparison) -> list[str]:
    """The notes below the table."""
    chosen, headline = choice(comparison), find_metric(comparison.metrics[0])
    texts = [] if comparison.points != [()] else [comparison_legend(comparison)]
    if comparison.points != [()]:
        by = "validation" if _validated(comparison) else "test"
        best = "; ".join(
            f"{comparison.label(row)} at {_label(point)}: {_value(comparison, headline, row, point)}"
            for row, point in chosen.items()
        )
        caution = ""
        if not _validated(comparison):
            caution = " So the numbers are optimistic; hold out validation data with --set data.validation=0.1."
        texts.append(f"* selected for its method by mean {by} {headline.title} after the last round. {best}.{caution}")
    texts.append(_significance(comparison, chosen))
    texts += tuned_caption.warnings(comparison)
    if comparison.points != [()]:
        texts += sweep_warnings.warnings(comparison, chosen)
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
    headline = find_metric(comparison.metrics[0])
    text = note(_ranked(comparison, headline, "global", chosen), headline, comparison.label)
    return f"Each method at its chosen setting. {text}" if text and comparison.points != [()] else text


def _ranked(
    comparison: Comparison, metric: Metric, name: str, settings: Mapping[str, Point | None]
) -> Ranking[str] | None:
    """Methods at a setting each, compared in one column."""
    return rank({row: _by_seed(comparison, metric, name, row, point) for row, point in settings.items()}, metric.better)


def _by_seed(comparison: Comparison, metric: Metric, name: str, row: str, point: Point | None) -> dict[Hashable, float]:
    key = column(name, metric.name, comparison.metrics[0])
    return {seed: values[key] for (seed, _), values in comparison.by_seed(row, point).items()}


def _comparison(comparison: Comparison, metric: Metric) -> list[Sheet]:
    first = metric.name == comparison.metrics[0]

    def key(name: str) -> str:
        return column(name, metric.name, comparison.metrics[0])

    known = [values for row in comparison.rows for values in comparison.of(row)]
    names = [name for name in TITLES if known and all(key(name) in values for values in known)] or ["global"]
    bold: dict[str, frozenset[str]] = {}
    for name in (name for name in names if name in JUDGED):
        ranking = _ranked(comparison, metric, name, dict.fromkeys(comparison.rows))
        bold[name] = ranking.bold if ranking else frozenset()
    costs = [("s/round",), ("MB/round",)] if first else []
    rows = []
    for row in comparison.rows:
        cells = [SheetEntry(comparison.label(row))]
        if not comparison.of(row):
            rows.append(_without_values(cells[0].text, _failed(comparison, row, ()), len(names) + len(costs)))
            continue
        for name in names:
            cells.append(SheetEntry(_value(comparison, metric, row, (), name), row in bold.get(name, ())))
        if first:
            cells.append(SheetEntry(f"{comparison.mean(row, 'seconds'):.2f}"))
            cells.append(SheetEntry(f"{comparison.mean(row, 'bytes') / 1e6:.2f}"))
        rows.append(cells)
    for item in comparison.tuning.diverged if comparison.tuning else ():
        rows.append(_without_values(comparison.label(item.method), "diverged", len(names) + len(costs)))
    columns = [("method",), *(TITLES[name] for name in names), *costs]
    return [Sheet(_over(comparison, metric), columns, rows)]


def _without_values(name: str, reason: str, columns: int) -> list[SheetEntry]:
    return [SheetEntry(name), SheetEntry(reason), *(SheetEntry("") for _ in range(columns - 1))]


def _failed(comparison: Comparison, row: str, point: Point) -> str:
    """What a table shows where no seed has a value."""
    failures = [r.failure for r in comparison.failures if (r.cell.row, r.cell.point) == (row, point)]
    return "diverged" if all(stopped_by_divergence(failure) for failure in failures) else "failed"


def _grids(comparison: Comparison, metric: Metric) -> list[Sheet]:
    fields = [field for field, _ in comparison.points[0]]
    wide = len(comparison.points) > WIDEST and len(fields) > 1
    groups: dict[Point, list[Point]] = {}
    for point in comparison.points:
        groups.setdefault(point[:1] if wide else (), []).append(point)
    return [_grid(comparison, metric, apart, points) for apart, points in groups.items()]


def _grid(comparison: Comparison, metric: Metric, apart: Point, points: Sequence[Point]) -> Sheet:
    chosen, bold = choice(comparison), _bold(comparison, metric, points)
    columns: list[tuple[str, ...]] = [("method",)]
    columns += [tuple(f"{field}={value}" for field, value in point[len(apart) :]) for point in points]
    rows = []
    for row in comparison.rows:
        cells = [SheetEntry(comparison.label(row))]
        for point in points:
            if not comparison.of(row, point):
                cells.append(SheetEntry(_failed(comparison, row, point)))
                continue
            mark = "*" if chosen[row] == point else ""
            cells.append(SheetEntry(_value(comparison, metric, row, point), (row, point) in bold, mark))
        rows.append(cells)
    where = f", {_label(apart)}" if apart else ""
    return Sheet(f"global {_over(comparison, metric)}{where}", columns, rows)


def _bold(comparison: Comparison, metric: Metric, points: Sequence[Point]) -> set[tuple[str, Point]]:
    """Methods are compared at equal settings; of one method, its settings."""
    if len(comparison.rows) > 1:
        columns = {
            point: _ranked(comparison, metric, "global", dict.fromkeys(comparison.rows, point)) for point in points
        }
        return {(row, point) for point, ranking in columns.items() if ranking for row in ranking.bold}
    row = comparison.rows[0]
    by_point = {point: _by_seed(comparison, metric, "global", row, point) for point in comparison.points}
    ranking = rank(by_point, metric.better)
    return {(row, point) for point in ranking.bold} if ranking else set()


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
        [
            "method",
            *_label_column(comparison),
            *fields,
            "seeds",
            "failed",
            *(f"{name}_{kind}" for name in names for kind in ("mean", "deviation")),
        ]
    ]
    for row in comparison.rows:
        for point in comparison.points:
            count = len(comparison.of(row, point))
            line: list[object] = [
                row,
                *_named(comparison, row),
                *(value for _, value in point),
                count,
                len(comparison.seeds) - count,
            ]
            for name in names:
                line += (
                    [comparison.mean(row, name, point), comparison.deviation(row, name, point)] if count else ["", ""]
                )
            lines.append(line)
    for item in comparison.tuning.diverged if comparison.tuning else ():
        lines.append([item.method, *_named(comparison, item.method), 0, 0, *("" for _ in names for _ in range(2))])
    return _csv(lines)


def _label_column(comparison: Comparison) -> list[str]:
    return ["label"] if comparison.labels else []


def _named(comparison: Comparison, row: str) -> list[str]:
    return [comparison.label(row)] if comparison.labels else []


def _runs(comparison: Comparison) -> str:
    fields = [field for field, _ in comparison.points[0]]
    names = list(dict.fromkeys(name for result in comparison.results for name in result.values()))
    lines: list[list[object]] = [["method", *_label_column(comparison), *fields, "seed", *names, "folder", "failure"]]
    for result in comparison.results:
        values, cell = result.values(), result.cell
        numbers = [values.get(name, "") for name in names]
        line = [
            cell.row,
            *_named(comparison, cell.row),
            *(value for _, value in cell.point),
            cell.seed,
            *numbers,
            result.run.path,
        ]
        lines.append([*line, (result.failure or "").partition("\n")[0]])
    return _csv(lines)


def _csv(lines: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
