"""The outcome of a comparison or a sweep as tables: methods as rows, swept values as columns, as papers print them.

Bold is the best mean of a column (of the row, where there is one method). In a grid a star marks each method's chosen
setting: chosen by validation accuracy where images were held back, otherwise by test accuracy, and then labelled so.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedloom.compare import Comparison, Point
from fedloom.engine.files import write
from fedloom.report.sheet import Entry, Sheet, latex, markdown
from fedloom.report.significance import note
from fedloom.report.table import comparison_legend, percent

WIDEST = 6  # columns of values in one table
TITLES = {"global": "global", "validation": "validation", "client": "clients", "personal": "personal"}
TITLES |= {"worst": "worst", "unseen": "unseen"}
JUDGED = ("global", "client", "personal")  # columns with a deviation and a best


def sheets(found: Comparison) -> list[Sheet]:
    """One table, or for a wide grid one for each value of the field named first; the notes are on the last."""
    made = [_comparison(found)] if found.points == [()] else _grids(found)
    last = made[-1]
    return [*made[:-1], Sheet(last.title, last.columns, last.rows, notes(found))]


def save(found: Comparison) -> list[Path]:
    """table.md, table.tex and table.csv (a line a method and setting), cells.csv (a line a run), beside the runs."""
    made = sheets(found)
    texts = {
        "table.md": markdown(made),
        "table.tex": latex(made),
        "table.csv": _means(found),
        "cells.csv": _runs(found),
    }
    for name, text in texts.items():
        path = found.root / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write(path, text)
    return [found.root / name for name in texts]


def notes(found: Comparison) -> list[str]:
    """What must be said below the table."""
    chosen = choice(found)
    told = [] if found.points != [()] else [comparison_legend(found)]
    if found.points != [()]:
        by = "validation" if _validated(found) else "test"
        best = "; ".join(f"{row} at {_label(point)}: {_value(found, row, point)}" for row, point in chosen.items())
        caution = (
            ""
            if _validated(found)
            else (
                " So these numbers flatter the methods: nothing was held out for the choice (--set data.validation=0.1 does)."
            )
        )
        told.append(f"* chosen for its method by mean {by} accuracy after the last round. {best}.{caution}")
    told.append(_significance(found, chosen))
    for result in found.failures:
        told.append(f"Failed: {result.cell.title}: {str(result.failure).splitlines()[0]}")
    return [text for text in told if text]


def choice(found: Comparison) -> dict[str, Point]:
    """Each method's best setting: by validation accuracy where there is any, else by test accuracy."""
    name = "validation" if _validated(found) else "global"
    chosen = {}
    for row in found.rows:
        known = [point for point in found.points if found.of(row, point)]
        if known:
            chosen[row] = max(known, key=lambda point: found.mean(row, name, point))
    return chosen


def _validated(found: Comparison) -> bool:
    return all("validation" in result.values() for result in found.results if result.failure is None)


def _significance(found: Comparison, chosen: Mapping[str, Point]) -> str:
    if len(chosen) < 2:
        return ""
    samples = {
        row: {seed: values["global"] for (seed, _), values in found.by_seed(row, point).items()}
        for row, point in chosen.items()
    }
    best = max(chosen, key=lambda row: found.mean(row, "global", chosen[row]))
    text = note(best, samples)
    return f"Each method at its chosen setting. {text}" if text and found.points != [()] else text


def _comparison(found: Comparison) -> Sheet:
    known = [values for row in found.rows for values in found.of(row)]
    names = [name for name in TITLES if known and all(name in values for values in known)] or ["global"]
    best = {name: _highest([found.mean(row, name) for row in found.rows]) for name in names}
    rows = []
    for row in found.rows:
        cells = [Entry(row)]
        if not found.of(row):
            rows.append([*cells, Entry("failed"), *(Entry("") for _ in range(len(names) + 1))])
            continue
        for name in names:
            bold = len(found.rows) > 1 and round(found.mean(row, name), 4) == best[name] and name in JUDGED
            cells.append(Entry(_value(found, row, (), name), bold))
        cells.append(Entry(f"{found.mean(row, 'seconds'):.2f}"))
        cells.append(Entry(f"{found.mean(row, 'bytes') / 1e6:.2f}"))
        rows.append(cells)
    columns = [("method",), *((TITLES[name],) for name in names), ("s/round",), ("MB/round",)]
    return Sheet(_over(found), columns, rows)


def _grids(found: Comparison) -> list[Sheet]:
    fields = [field for field, _ in found.points[0]]
    wide = len(found.points) > WIDEST and len(fields) > 1
    groups: dict[Point, list[Point]] = {}
    for point in found.points:
        groups.setdefault(point[:1] if wide else (), []).append(point)
    return [_grid(found, apart, points) for apart, points in groups.items()]


def _grid(found: Comparison, apart: Point, points: Sequence[Point]) -> Sheet:
    chosen = choice(found)
    single = len(found.rows) == 1
    whole = _highest([found.mean(found.rows[0], "global", point) for point in points])
    columns: list[tuple[str, ...]] = [("method",)]
    columns += [tuple(f"{field}={value}" for field, value in point[len(apart) :]) for point in points]
    best = {
        point: whole if single else _highest([found.mean(r, "global", point) for r in found.rows]) for point in points
    }
    rows = []
    for row in found.rows:
        cells = [Entry(row)]
        for point in points:
            if not found.of(row, point):
                cells.append(Entry("failed"))
                continue
            bold = round(found.mean(row, "global", point), 4) == best[point]
            cells.append(Entry(_value(found, row, point), bold, "*" if chosen[row] == point else ""))
        rows.append(cells)
    where = f", {_label(apart)}" if apart else ""
    return Sheet(f"global {_over(found)}{where}", columns, rows)


def _over(found: Comparison) -> str:
    seeds = len(found.seeds)
    return "accuracy in %, " + (f"mean ± deviation over {seeds} seeds" if seeds > 1 else "one seed")


def _value(found: Comparison, row: str, point: Point, name: str = "global") -> str:
    many = len(found.seeds) > 1 and name in (*JUDGED, "validation")
    if math.isnan(found.mean(row, name, point)):
        return "-"
    text = percent(found.mean(row, name, point), found.deviation(row, name, point) if many else None)
    missing = len(found.seeds) - len(found.of(row, point))
    return f"{text} ({missing} failed)" if missing else text


def _label(point: Point) -> str:
    return " ".join(f"{field}={value}" for field, value in point)


def _highest(values: Sequence[float]) -> float:
    return max((round(value, 4) for value in values if not math.isnan(value)), default=math.nan)


def _means(found: Comparison) -> str:
    fields = [field for field, _ in found.points[0]]
    names = list(dict.fromkeys(name for result in found.results for name in result.values()))
    lines: list[list[object]] = [
        ["method", *fields, "seeds", "failed", *(f"{name}_{kind}" for name in names for kind in ("mean", "deviation"))]
    ]
    for row in found.rows:
        for point in found.points:
            count = len(found.of(row, point))
            line: list[object] = [row, *(value for _, value in point), count, len(found.seeds) - count]
            for name in names:
                line += [found.mean(row, name, point), found.deviation(row, name, point)] if count else ["", ""]
            lines.append(line)
    return _csv(lines)


def _runs(found: Comparison) -> str:
    fields = [field for field, _ in found.points[0]]
    names = list(dict.fromkeys(name for result in found.results for name in result.values()))
    lines: list[list[object]] = [["method", *fields, "seed", *names, "folder", "failure"]]
    for result in found.results:
        values, cell = result.values(), result.cell
        numbers = [values.get(name, "") for name in names]
        line = [cell.row, *(value for _, value in cell.point), cell.seed, *numbers, result.run.path]
        lines.append([*line, (result.failure or "").partition("\n")[0]])
    return _csv(lines)


def _csv(lines: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
