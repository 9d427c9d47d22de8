"""Results on record beside the papers' numbers, as Markdown for docs/reproductions.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedloom.papers import PublishedCell, paper, protocol_of, table_cells
from fedloom.report.reproduction import MARKS, published
from fedloom.studies.reproduce.claims import judge
from fedloom.studies.reproduce.outcome import CellOutcome, Verdict, marks
from fedloom.studies.reproduce.results import Results

COLUMNS = ("table", "cell", "accuracy of", "published", "ours", "difference", "seeds", "departs")


def cells_section(key: str, folder: Path) -> str:
    """Every finished cell of a paper: published, ours, difference, seeds, what differs; and how many are open."""
    by_table = outcomes(key, folder)
    lines = [
        "| table | cell | accuracy of | published | ours | difference | seeds | departs |",
        "|---|---|---|--:|--:|--:|--:|---|",
    ]
    counts = []
    for name, items in by_table.items():
        table = paper(key).tables[name]
        finished = [item for item in items if item.values or item.failure]
        verdicts = marks(items, table.orders)
        lines += [_line(item, table.label, verdicts) for item in finished]
        runnable = sum(not item.cell.not_runnable for item in items)
        counts.append(f"{table.label}: {len(finished)} of {runnable}")
    total = "Finished cells of those that can be run: " + "; ".join(counts) + "."
    return "\n".join([*lines, "", *_wrapped(total)]) if len(lines) > 2 else "\n".join(_wrapped(total))


def claims_section(key: str, folder: Path) -> str:
    """A verdict for each claim."""
    by_table = outcomes(key, folder)
    lines = ["| claim | verdict | pairs of cells |", "|---|---|---|"]
    for claim in paper(key).claims:
        verdict = judge(claim, by_table)
        counts = "; ".join(text for text in (verdict.counts, claim.note) if text)
        lines.append(f"| {claim.text} | {verdict.text} | {counts} |")
    return "\n".join(lines)


def outcomes(key: str, folder: Path) -> dict[str, list[CellOutcome]]:
    """By table; cells without a result have no values."""
    results = Results(folder)
    return {
        name: [results.outcome(cell, _test_samples(cell)) for cell in table_cells(key, name)]
        for name in paper(key).tables
    }


def _test_samples(cell: PublishedCell) -> int:
    sizes = protocol_of(cell).sizes if cell.protocol else None
    return sizes.test if sizes is not None else 0


def _line(item: CellOutcome, table: str, verdicts: dict[str, Verdict]) -> str:
    mark = MARKS.get(verdicts.get(item.cell.id, Verdict.UNKNOWN), "")
    if item.mean is None:
        ours, difference = item.failure, ""
    else:
        spread = f" ± {item.deviation:.2f}" if item.deviation is not None else ""
        ours = f"{item.mean:.2f}{spread} {mark}".strip()
        difference = "" if item.difference is None else f"{item.difference:+.2f}"
    departs = "; ".join(item.differs)
    cells = [
        table,
        item.cell.id,
        item.cell.measure.text,
        published(item),
        ours,
        difference,
        str(item.seeds),
        departs,
    ]
    return f"| {' | '.join(text.replace('|', '/') for text in cells)} |"


def _wrapped(text: str, width: int = 100) -> Sequence[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]
