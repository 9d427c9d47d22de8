"""What can be reproduced: the papers' tables with cells, runs, an estimate of the time on this machine, and their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedloom.errors import FedloomError
from fedloom.papers import PAPERS, PublishedCell, key_of, paper, protocols, table_cells
from fedloom.studies.reproduce.choose import choose
from fedloom.studies.reproduce.data import Availability, availability, how_to_get
from fedloom.studies.reproduce.estimate import duration, seconds
from fedloom.studies.reproduce.jobs import Job, plan_jobs


@dataclass(frozen=True)
class Listed:
    """Rows, and what to say below them."""

    rows: list[dict[str, str]]
    notes: list[str]


def tables_list(name: str | None = None) -> Listed:
    """One row a table, of all papers or of one."""
    keys = PAPERS if name is None else (key_of(name),)
    sets: dict[str, Availability] = {}
    rows = [_table(key, table, sets) for key in keys for table in paper(key).tables]
    states = {
        Availability.HERE: "Here",
        Availability.DOWNLOAD: "Downloaded when first used",
        Availability.MISSING: "Missing (fedloom reproduce list PAPER/TABLE says where to get them)",
    }
    notes = []
    for state, text in states.items():
        if names := [data for data, its in sets.items() if its is state]:
            notes.append(f"{text}: {', '.join(names)}")
    return Listed(rows, notes)


def _table(key: str, table: str, sets: dict[str, Availability]) -> dict[str, str]:
    cells = table_cells(key, table)
    runnable = [cell for cell in cells if not cell.not_runnable]
    jobs = _jobs(runnable)
    needed = {name: availability(name) for name in dict.fromkeys(name for job in jobs for name in _needs(job))}
    sets |= needed
    here = sum(state is Availability.HERE for state in needed.values())
    return {
        "name": f"{key}/{table}",
        "title": paper(key).tables[table].title,
        "cells": f"{len(runnable)} of {len(cells)}" if len(runnable) < len(cells) else str(len(cells)),
        "runs": str(len(jobs)),
        "hours": duration(seconds(jobs)) if jobs else "",
        "data": f"{here} of {len(needed)}" if needed else "",
    }


def _needs(job: Job) -> list[str]:
    """Data set and initial weights, unless another run leaves them."""
    recipe = job.cell.recipe
    return [recipe.data.name, *([recipe.init] if recipe.init and job.begins_with is None else [])]


def _labels(cells: Sequence[PublishedCell]) -> list[str]:
    """What `--cells` may name."""
    axes: dict[str, dict[str, None]] = {}
    for cell in cells:
        for axis, label in cell.labels.items():
            axes.setdefault(axis, {})[label] = None
    return [f"--cells {axis}=: {' | '.join(labels)}" for axis, labels in axes.items() if len(labels) > 1]


def _jobs(cells: Sequence[PublishedCell]) -> list[Job]:
    return plan_jobs(cells, (0,), 1.0, {}, Path("runs/reproduce"))


def table_list(target: str) -> Listed:
    """One row a cell of one table: what was printed, and what gives the same number here."""
    cells = choose(target)
    rows: list[dict[str, str]] = []
    reasons: dict[str, int] = {}
    for cell in cells:
        if cell.not_runnable:
            reasons[cell.not_runnable] = reasons.get(cell.not_runnable, 0) + 1
        rows.append(
            {
                "cell": cell.id,
                "published": "failed" if cell.value is None else f"{cell.value:g}",
                "measure": cell.measure.text,
                "method": "not runnable" if cell.not_runnable else str(cell.fields()["method"]),
                "time": "" if cell.not_runnable else _time(cell),
            }
        )
    whole = paper(target.partition("/")[0])
    notes = _labels(cells)
    notes += [f"Not runnable ({count} cells): {reason}" for reason, count in reasons.items()]
    for name in dict.fromkeys(cell.protocol for cell in cells if cell.protocol):
        data = str(protocols()[name].recipe["data.name"])
        state = availability(data)
        if state is not Availability.HERE:
            here = "missing" if state is Availability.MISSING else "not in $FEDLOOM_DATA"
            notes.append(f"{data} is {here}: {how_to_get(data, protocols()[name])}")
        if weights := protocols()[name].recipe.get("init"):
            notes.append(f"Initial weights are downloaded: {weights}")
    notes += [f"Note: {note}" for note in whole.notes]
    return Listed(rows, list(dict.fromkeys(notes)))


def table_line(row: Mapping[str, str]) -> tuple[str, str, str]:
    """Name, text and group of a row of `tables_list`."""
    facts = [f"{row['cells']} cells", f"{row['runs']} runs"]
    facts += [f"{row['hours']} here"] if row["hours"] else []
    facts += [f"data sets here: {row['data']}"] if row["data"] else []
    return row["name"], f"{row['title']}; {', '.join(facts)}", row["name"].partition("/")[0]


def cell_line(row: Mapping[str, str]) -> tuple[str, str]:
    """Name and text of a row of `table_list`."""
    published = f"published {row['published']}"
    return row["cell"], ", ".join(text for text in (published, row["measure"], row["method"], row["time"]) if text)


def _time(cell: PublishedCell) -> str:
    try:
        return duration(seconds(_jobs([cell])))
    except FedloomError:
        return ""
