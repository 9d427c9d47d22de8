"""A reproduced table in the paper's own layout: published, ours and the difference below each other.

Marks on our numbers: o is where the paper has it relative to the best published number of its group, x is reversed, ? is
within noise. Files: PAPER-TABLE.md, .tex, .csv (a line per cell) and .reproduction.json (for the page).
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.io.files import write, write_json
from fedloom.papers import Measure, Paper, paper
from fedloom.report.sheet import Sheet, SheetEntry, latex, markdown
from fedloom.studies.reproduce import CellOutcome, Reproduction, Verdict, marks, orderings
from fedloom.studies.reproduce.claims import judge
from fedloom.studies.reproduce.stored import write_reproduction

SETTINGS = 12  # whose order is spelled out
MARKS = {Verdict.HOLDS: "o", Verdict.REVERSED: "x", Verdict.NOISE: "?"}
LEGEND = "o: ordered as published beside the best published number of its group; x: reversed; ?: within noise."
CSV = (
    *("paper", "table", "cell", "method", "recipe_method", "protocol", "measure", "published", "published_deviation"),
    *("ours", "ours_deviation", "seeds", "difference", "ordering", "departs", "failure", "note"),
)


def measures_text(measures: Sequence[Measure]) -> str:
    """All of them, with epochs of fine-tuning that differ in nothing else in one."""
    texts: dict[Measure, list[str]] = {}
    for measure in dict.fromkeys(measures):
        texts.setdefault(measure.model_copy(update={"epochs": None}), []).append(str(measure.epochs or ""))
    return "; ".join(
        base.text.replace("epochs not printed", f"{', '.join(epochs)} epochs") if any(epochs) else base.text
        for base, epochs in texts.items()
    )


def sheets(reproduction: Reproduction, key: str, table: str) -> list[Sheet]:
    """One for each block of the table; the last one has the notes."""
    whole, outcomes = paper(key), reproduction.table(key, table)
    known, made = whole.tables[table], []
    verdicts = marks(outcomes, known.orders)
    for number in range(len(known.blocks)):
        inside = [item for item in outcomes if item.cell.block == number]
        if inside:
            made.append(_sheet(reproduction, whole, table, number, inside, verdicts))
    notes = list(_notes(reproduction, whole, table, outcomes))
    return [*made[:-1], Sheet(made[-1].title, made[-1].columns, made[-1].rows, notes)]


def _sheet(
    reproduction: Reproduction,
    whole: Paper,
    table: str,
    number: int,
    outcomes: Sequence[CellOutcome],
    verdicts: dict[str, Verdict],
) -> Sheet:
    known, block = whole.tables[table], whole.tables[table].blocks[number]
    by_labels = {tuple(item.cell.labels.values()): item for item in outcomes}
    columns = [
        labels
        for labels in itertools.product(*block.columns.values())
        if any(key[len(block.rows) :] == labels for key in by_labels)
    ]
    rows = []
    for labels in itertools.product(*block.rows.values()):
        cells = [by_labels.get((*labels, *column)) for column in columns]
        if any(cells):
            rows += _lines(
                _row_label(dict(zip(block.rows, labels, strict=True))),
                cells,
                verdicts,
                reproduction.plan.departures,
                known.unit == "seconds",
            )
    titles = [tuple(f"{axis}={label}" for axis, label in zip(block.columns, column, strict=True)) for column in columns]
    protocol = next((item.cell.protocol for item in outcomes if item.cell.protocol), "")
    title = f"{whole.name}, {known.label}: {known.title}" + (f" ({protocol})" if len(known.blocks) > 1 else "")
    return Sheet(title, [(" / ".join(block.rows),), *titles], rows)


def _row_label(labels: Mapping[str, str]) -> str:
    """`s=10, FedAvg`: a method needs no axis."""
    return ", ".join(label if axis.startswith("method") else f"{axis}={label}" for axis, label in labels.items())


def _lines(
    label: str, cells: Sequence[CellOutcome | None], verdicts: dict[str, Verdict], departures: Sequence[str], time: bool
) -> list[list[SheetEntry]]:
    ours = f"{label}, ours" + (f" ({', '.join(departures)})" if departures else "")
    lines = [[SheetEntry(f"{label}, published"), *(SheetEntry(published(item)) for item in cells)]]
    if any(item is not None and (item.values or item.failure) for item in cells):
        marked = [MARKS.get(verdicts.get(item.cell.id, Verdict.UNKNOWN), "") if item else "" for item in cells]
        entries = [SheetEntry(_ours(item), mark=mark) for item, mark in zip(cells, marked, strict=True)]
        lines.append([SheetEntry(ours), *entries])
        if not time:  # of another machine
            lines.append([SheetEntry(f"{label}, difference"), *(SheetEntry(_difference(item)) for item in cells)])
    return lines


def published(item: CellOutcome | None) -> str:
    if item is None:
        return ""
    return "failed" if item.cell.value is None else _number(item.cell.value, item.cell.deviation)


def _ours(item: CellOutcome | None) -> str:
    if item is None:
        return ""
    if item.mean is None:
        return item.failure if item.diverged else "failed" if item.failure else ""
    return _number(item.mean, item.deviation)


def _difference(item: CellOutcome | None) -> str:
    return "" if item is None or item.difference is None else f"{item.difference:+.2f}"


def _number(mean: float, deviation: float | None) -> str:
    return f"{mean:.2f}" + (f" ± {deviation:.2f}" if deviation is not None else "")


def _notes(reproduction: Reproduction, whole: Paper, table: str, outcomes: Sequence[CellOutcome]) -> Iterable[str]:
    known, plan = whole.tables[table], reproduction.plan
    if known.unit == "seconds":
        yield "Seconds of a round."
    else:
        yield f"Accuracy in %: {measures_text([item.cell.measure for item in outcomes])}."
    seeds = "one seed" if len(plan.seeds) == 1 else f"{len(plan.seeds)} seeds, mean ± deviation over seeds"
    yield f"Ours: {seeds}" + (f"; {', '.join(plan.departures)}" if plan.departures else "") + ", last round."
    if known.orders and orderings(outcomes, known.orders):
        single = "twice the standard error of the test set"
        single += " and of the paper's seeds" if known.deviations == "seeds" else ""
        noise = single if len(plan.seeds) == 1 else "95 % interval over seeds"
        yield f"{LEGEND} Noise: {noise}."
        yield from _orderings(outcomes, known.orders)
    for claim in whole.claims:
        verdict = judge(claim, {table: outcomes})
        if verdict.pairs:
            how = ", ".join([seeds.partition(",")[0], *plan.departures])
            yield f"Claim: {claim.text} Here ({how}): {verdict.verdict} ({verdict.counts})."
    apart = [(", ".join(text for text in item.differs if text not in plan.departures), item) for item in outcomes]
    yield from _grouped("Departs", [(text, item) for text, item in apart if text])
    yield from _grouped("Failed", [(item.failure, item) for item in outcomes if item.failure])
    yield from _grouped("Note", [(item.cell.note, item) for item in outcomes if item.cell.note])
    yield from _grouped("Not run", [(item.cell.not_runnable, item) for item in outcomes if item.cell.not_runnable])
    for name, how in plan.without_data.items():
        yield f"Not run: the data set {name} is missing; {how}."


def _orderings(outcomes: Sequence[CellOutcome], axis: str) -> Iterable[str]:
    ranked = orderings(outcomes, axis)
    holds, noise, reverse = (sum(getattr(item, name) for item in ranked) for name in ("holds", "noise", "reversed"))
    if ranked:
        pairs = holds + noise + reverse
        yield f"Ordering: {holds} of {pairs} pairs as published, {noise} within noise, {reverse} reversed."
    yield from (f"At {item.text}." for item in ranked[:SETTINGS])
    if len(ranked) > SETTINGS:
        yield f"And {len(ranked) - SETTINGS} more settings."


def _grouped(word: str, pairs: Sequence[tuple[str, CellOutcome]]) -> Iterable[str]:
    """A text once, with the cells that it is about."""
    texts: dict[str, list[str]] = {}
    for text, item in pairs:
        texts.setdefault(text, []).append(item.cell.name or item.cell.id if word == "Note" else item.cell.id)
    for text, names in texts.items():
        shown = list(dict.fromkeys(names))
        listed = "; ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
        yield f"{word}: {listed}: {text}."


def save(reproduction: Reproduction) -> list[Path]:
    """Write every table's files."""
    written = []
    for key, table in reproduction.tables:
        base = reproduction.plan.out / f"{key}-{table}"
        made = sheets(reproduction, key, table)
        texts = {".md": markdown(made), ".tex": latex(made), ".csv": _csv(reproduction, key, table)}
        for suffix, text in texts.items():
            write(Path(f"{base}{suffix}"), text)
            written.append(Path(f"{base}{suffix}"))
        write_json(Path(f"{base}.reproduction.json"), content(reproduction, key, table))
        written.append(Path(f"{base}.reproduction.json"))
    return [*written, write_reproduction(reproduction)]


def content(reproduction: Reproduction, key: str, table: str) -> dict[str, Any]:
    """The tables as plain values, for the page."""
    made = sheets(reproduction, key, table)
    return {
        "title": made[0].title,
        "blocks": [
            {
                "columns": [", ".join(column) for column in sheet.columns],
                "rows": [
                    [entry.text + (f" {entry.mark}" if entry.mark else "") for entry in row] for row in sheet.rows
                ],
            }
            for sheet in made
        ],
        "notes": list(made[-1].notes),
    }


def _csv(reproduction: Reproduction, key: str, table: str) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV)
    outcomes = reproduction.table(key, table)
    verdicts = marks(outcomes, paper(key).tables[table].orders)
    for item in outcomes:
        cell = item.cell
        ordering = verdicts.get(cell.id)
        writer.writerow(
            [
                *(
                    paper(key).name,
                    paper(key).tables[table].label,
                    cell.id,
                    cell.name,
                    cell.sum or "",
                    cell.protocol or "",
                ),
                *(cell.measure.text, _plain(cell.value), _plain(cell.deviation), _plain(item.mean)),
                *(
                    _plain(item.deviation),
                    len(item.values),
                    _plain(item.difference),
                    ordering.value if ordering else "",
                ),
                *("; ".join(item.differs), item.failure, cell.not_runnable or cell.note),
            ]
        )
    return text.getvalue()


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
