"""All that the page shows, as one JSON object: numbers as they stand in the run folders, in the order they are drawn.

Accuracies are fractions, times seconds, sizes bytes. Means and bands over seeds are made in the browser, so the page's
switches need no second copy of the data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedloom import __version__
from fedloom.errors import FedloomError, brief, one_line
from fedloom.report.comparable import label, ours
from fedloom.report.gather import Found, find
from fedloom.report.measured import measured, number
from fedloom.report.published import matching, notes
from fedloom.report.series import Series, group, recipe_table

Piece: TypeAlias = dict[str, Any]
# what reading a folder raises that somebody has damaged or edited
DAMAGE = (FedloomError, OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
CURVES = ("train_loss", "test_accuracy", "validation_accuracy", "client_accuracy", "personal_accuracy", "lr", "lost")
CLIENTS = 2000  # of one run, in distributions; more are thinned out in order of accuracy
ROWS = 200  # clients in a split's heat map
MAPS = 8  # splits that are shown
WORST = 5


def content(paths: Sequence[str | Path], title: str = "", some: bool = True) -> dict[str, Any]:
    runs, problems = readable(find(paths, some))
    if some and not runs:
        raise FedloomError(f"report: {problems[0]['path']} cannot be shown: {problems[0]['reason']}")
    series = group([run for run, _, _ in runs])
    pieces = {run.path: (drawn, analysis) for run, drawn, analysis in runs}
    published = _published(series)
    return {
        "title": title or "fedloom report",
        "version": __version__,
        "problems": problems,
        "series": [_series(item, pieces) for item in series],
        "recipe": recipe_table(series),
        "splits": _splits(series),
        "published": published,
        "protocols": notes(row["paper"] for row in published),
    }


def readable(found: Sequence[Found]) -> tuple[list[tuple[Found, Piece, Piece]], list[dict[str, str]]]:
    """The runs that can be shown, each with its numbers and its analysis; and what is wrong with which folder."""
    runs, problems = [], []
    for run in found:
        try:
            run.check()
            drawn, _ = _run(run), run.identity
            if run.flaw:
                problems.append({"path": str(run.path), "reason": run.flaw})
        except DAMAGE as error:
            problems.append({"path": str(run.path), "reason": _reason(error)})
            continue
        damaged: list[str] = []
        analysis = measured(run, damaged)
        problems += [{"path": str(run.path), "reason": reason} for reason in damaged]
        runs.append((run, drawn, analysis))
    return runs, problems


def _reason(error: Exception) -> str:
    if isinstance(error, FedloomError):
        return str(error)
    return one_line(f"a file in it is damaged ({type(error).__name__}: {brief(str(error))})")


def _series(item: Series, pieces: Mapping[Path, tuple[Piece, Piece]]) -> dict[str, Any]:
    runs = []
    analysed = False
    for run in item.runs:
        found, analysis = pieces[run.path]
        if analysed:  # matrices and points of one run tell the story of its series
            analysis = {name: value for name, value in analysis.items() if name in ("rounds", "summary")}
        analysed = analysed or bool(analysis)
        runs.append({**found, "analysis": analysis} if analysis else found)
    return {"label": item.label, "method": item.runs[0].method, "runs": runs}


def _run(run: Found) -> dict[str, Any]:
    lines = run.rounds
    found: dict[str, Any] = {
        "path": str(run.path),
        "seed": run.fields.get("seed"),
        "rounds": run.fields.get("rounds"),
        "done": len(lines),
        "finished": run.finished,
        "summary": _summary(run),
        "curves": _curves(lines),
    }
    for name in ("accuracy", "personal_accuracy"):
        values = [(number(v), k) for k, v in enumerate(run.clients.get(name) or []) if v is not None]
        if values:
            found.setdefault("clients", {})[name] = _clients([(v, k) for v, k in values if v is not None])
    if run.tuned:
        found["tuned"] = [
            {key: item.get(key) for key in ("part", "epochs", "lr", "loss", "personal_accuracy")}
            for item in run.tuned
            if item.get("personal_accuracy") and not item.get("sample")  # a few clients are no column of the table
        ]
    return found


def _summary(run: Found) -> dict[str, Any]:
    names = ("test_accuracy", "clean_test_accuracy", "client_accuracy", "personal_accuracy", "best_by_validation")
    more = ("domain_accuracy", "train_loss", "rounds", "lost", "seconds", "bytes_down", "bytes_up", "parameters")
    return {
        name: run.summary[name]
        for name in (*names, *more, "seconds_by", "exchanged", "personal", "epsilon", "digest")
        if name in run.summary
    }


def _curves(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One list a quantity; seconds and bytes summed up to each round. Testing is not counted as work of the round."""
    if not lines:
        return {"round": [], "seconds": [], "bytes": []}
    found: dict[str, Any] = {
        "round": [line["round"] for line in lines],
        "seconds": [number(v) for v in np.cumsum([line["seconds"] for line in lines])],
        "bytes": [int(v) for v in np.cumsum([line["bytes_down"] + line["bytes_up"] for line in lines])],
    }
    for name in CURVES:
        values = [number(line.get(name)) for line in lines]
        if any(value is not None for value in values):
            found[name] = values
    chosen = [line.get("selectors") or {} for line in lines]
    if any(chosen):
        found["selectors"] = _selectors(chosen)
    return found


def _selectors(lines: Sequence[dict[str, Any]]) -> dict[str, list[list[float | None]]]:
    """Layer (and which of its statistics) -> one list of shares a round."""
    flat = []
    for line in lines:
        one: dict[str, list[Any]] = {}
        for layer, shares in line.items():
            if isinstance(shares, dict):
                one |= {f"{layer} {name}": values for name, values in shares.items()}
            else:
                one[layer] = shares
        flat.append(one)
    names = dict.fromkeys(name for one in flat for name in one)
    return {name: [[number(v, 4) for v in one.get(name) or []] for one in flat] for name in names}


def _clients(values: list[tuple[float, int]]) -> dict[str, Any]:
    """A distribution, and the clients at its lower end."""
    ordered = sorted(values)
    picked = ordered
    if len(ordered) > CLIENTS:
        picked = [ordered[i] for i in np.linspace(0, len(ordered) - 1, CLIENTS).round().astype(int)]
    worst = [{"client": client, "accuracy": value} for value, client in ordered[:WORST]]
    return {"values": [value for value, _ in picked], "count": len(ordered), "worst": worst}


def _splits(series: Sequence[Series]) -> list[dict[str, Any]]:
    """One heat map for each different partition."""
    found: dict[str, dict[str, Any]] = {}
    for item in series:
        for run in item.runs:
            try:
                key = hashlib.sha256((run.path / "partition.npz").read_bytes()).hexdigest()
            except OSError:
                continue
            if key in found:
                found[key]["series"].append(item.label)
                continue
            counts = run.held() if len(found) < MAPS else None
            if counts is None:
                continue
            name = f"{run.fields.get('data.name')}, {run.fields.get('split')}, seed {run.fields.get('seed')}"
            if name in (other["label"] for other in found.values()):
                name += f", of {item.label}"
            found[key] = {
                "label": name,
                "series": [item.label],
                "clients": len(counts),
                "counts": counts[:ROWS].tolist(),
                "sizes": [int(v) for v in np.percentile(counts.sum(1), [0, 25, 50, 75, 100])],
            }
    return list(found.values())


def _published(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Rows of papers' tables, each beside our value of the same measure."""
    found = []
    for place, item in enumerate(series):
        fields = item.runs[0].fields
        for row in matching(fields, str(fields.get("method", ""))):
            side = ours(item.runs, row["measure"])
            beside = {"ours": side.values, "lacking": side.lacking, "differs": [*row["differs"], *side.differs]}
            told = {name: row[name] for name in ("paper", "table", "method", "value", "deviation", "setting", "flag")}
            found.append(
                {"series": place, **told, "best_of": row["best_of"], "measure": label(row["measure"]), **beside}
            )
    return found
