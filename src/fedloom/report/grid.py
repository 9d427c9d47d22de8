"""A comparison or a sweep as tables: methods as rows, swept values as columns, as in papers.

Bold is the best mean of a column (of the row, if there is one method). In a grid a star marks each method's selected
setting: selected by validation accuracy if there are validation samples, otherwise by test accuracy, and the notes say which.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedloom.io.files import write
from fedloom.report.sheet import Sheet, SheetEntry, latex, markdown
from fedloom.report.significance import note
from fedloom.report.table import comparison_legend, percent
from fedloom.runs.cells import Point
from fedloom.runs.comparison import Comparison

WIDEST = 6  # columns of values in one table, at most
TITLES = {"global": "global", "validation": "validation", "client": "clients", "personal": "personal"}
TITLES |= {"worst": "worst", "unseen": "unseen"}
JUDGED = ("global", "client", "personal")  # columns with a standard deviation and a best value


def sheets(comparison: Comparison) -> list[Sheet]:
    """One table; for a wide grid, one per value of the first field. The last one has the notes."""
    tables = [_comparison(comparison)] if comparison.points == [()] else _grids(comparison)
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
    chosen = choice(comparison)
    texts = [] if comparison.points != [()] else [comparison_legend(comparison)]
    if comparison.points != [()]:
        by = "validation" if _validated(comparison) else "test"
        best = "; ".join(f"{row} at {_label(point)}: {_value(comparison, row, point)}" for row, point in chosen.items())
        caution = ""
        if not _validated(comparison):
            caution = " So the numbers are optimistic; hold out validation data with --set data.validation=0.1."
        texts.append(f"* selected for its method by mean {by} accuracy after the last round. {best}.{caution}")
    texts.append(_significance(comparison, chosen))
    for result in comparison.failures:
        texts.append(f"Failed: {result.cell.title}: {str(result.failure).splitlines()[0]}")
    return [text for text in texts if text]


def choice(comparison: Comparison) -> dict[str, Point]:
    """Each method's best setting: by validation accuracy if there is any, otherwise by test accuracy."""
    name = "validation" if _validated(comparison) else "global"
    chosen = {}
    for row in comparison.rows:
        known = [point for point in comparison.points if comparison.of(row, point)]
        if known:
            chosen[row] = max(known, key=lambda point: comparison.mean(row, name, point))
    return chosen


def _validated(comparison: Comparison) -> bool:
    return all("validation" in result.values() for result in comparison.results if result.failure is None)


def _significance(comparison: Comparison, chosen: Mapping[str, Point]) -> str:
    if len(chosen) < 2:
        return ""
    samples = {
        row: {seed: values["global"] for (seed, _), values in comparison.by_seed(row, point).items()}
        for row, point in chosen.items()
    }
    best = max(chosen, key=lambda row: comparison.mean(row, "global", chosen[row]))
    text = note(best, samples)
    return f"Each method at its chosen setting. {text}" if text and comparison.points != [()] else text


def _comparison(comparison: Comparison) -> Sheet:
    known = [values for row in comparison.rows for values in comparison.of(row)]
    names = [name for name in TITLES if known and all(name in values for values in known)] or ["global"]
    best = {name: _highest([comparison.mean(row, name) for row in comparison.rows]) for name in names}
    rows = []
    for row in comparison.rows:
        cells = [SheetEntry(row)]
        if not comparison.of(row):
            rows.append([*cells, SheetEntry("failed"), *(SheetEntry("") for _ in range(len(names) + 1))])
            continue
        for name in names:
            bold = len(comparison.rows) > 1 and round(comparison.mean(row, name), 4) == best[name] and name in JUDGED
            cells.append(SheetEntry(_value(comparison, row, (), name), bold))
        cells.append(SheetEntry(f"{comparison.mean(row, 'seconds'):.2f}"))
        cells.append(SheetEntry(f"{comparison.mean(row, 'bytes') / 1e6:.2f}"))
        rows.append(cells)
    columns = [("method",), *((TITLES[name],) for name in names), ("s/round",), ("MB/round",)]
    return Sheet(_over(comparison), columns, rows)


def _grids(comparison: Comparison) -> list[Sheet]:
    fields = [field for field, _ in comparison.points[0]]
    wide = len(comparison.points) > WIDEST and len(fields) > 1
    groups: dict[Point, list[Point]] = {}
    for point in comparison.points:
        groups.setdefault(point[:1] if wide else (), []).append(point)
    return [_grid(comparison, apart, points) for apart, points in groups.items()]


def _grid(comparison: Comparison, apart: Point, points: Sequence[Point]) -> Sheet:
    chosen = choice(comparison)
    single = len(comparison.rows) == 1
    whole = _highest([comparison.mean(comparison.rows[0], "global", point) for point in points])
    columns: list[tuple[str, ...]] = [("method",)]
    columns += [tuple(f"{field}={value}" for field, value in point[len(apart) :]) for point in points]
    best = {
        point: whole if single else _highest([comparison.mean(r, "global", point) for r in comparison.rows])
        for point in points
    }
    rows = []
    for row in comparison.rows:
        cells = [SheetEntry(row)]
        for point in points:
            if not comparison.of(row, point):
                cells.append(SheetEntry("failed"))
                continue
            bold = round(comparison.mean(row, "global", point), 4) == best[point]
            cells.append(SheetEntry(_value(comparison, row, point), bold, "*" if chosen[row] == point else ""))
        rows.append(cells)
    where = f", {_label(apart)}" if apart else ""
    return Sheet(f"global {_over(comparison)}{where}", columns, rows)


def _over(comparison: Comparison) -> str:
    seeds = len(comparison.seeds)
    return "accuracy in %, " + (f"mean ± deviation over {seeds} seeds" if seeds > 1 else "one seed")


def _value(comparison: Comparison, row: str, point: Point, name: str = "global") -> str:
    many = len(comparison.seeds) > 1 and name in (*JUDGED, "validation")
    if math.isnan(comparison.mean(row, name, point)):
        return "-"
    text = percent(comparison.mean(row, name, point), comparison.deviation(row, name, point) if many else None)
    missing = len(comparison.seeds) - len(comparison.of(row, point))
    return f"{text} ({missing} failed)" if missing else text


def _label(point: Point) -> str:
    return " ".join(f"{field}={value}" for field, value in point)


def _highest(values: Sequence[float]) -> float:
    return max((round(value, 4) for value in values if not math.isnan(value)), default=math.nan)


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
