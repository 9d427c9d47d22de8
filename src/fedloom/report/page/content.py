"""The page's data as one JSON object: the numbers of the run folders, in the order of the page.

Metrics are as in the run folders (shares are fractions), times are in seconds, sizes in bytes. The browser computes means and
bands over seeds, so the page's switches need no second copy of the data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedloom.errors import FedloomError, brief, one_line
from fedloom.report.page import origin
from fedloom.report.page.bold import mark_bold
from fedloom.report.page.comparable import label, our_values
from fedloom.report.page.gather import RunFiles, find_runs
from fedloom.report.page.measured import analysis_sections, number
from fedloom.report.page.published import matching, notes
from fedloom.report.page.reproduced import reproduced
from fedloom.report.page.series import Series, group, recipe_table
from fedloom.report.page.tuned import tunings
from fedloom.runs.labels import Labels, read_labels
from fedloom.version import __version__

JsonObject: TypeAlias = dict[str, Any]
# raised when a damaged or edited folder is read
DAMAGE = (FedloomError, OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
CURVES = ("test", "validation", "client", "personal")  # before _<metric>
IN_SUMMARY = ("test", "clean_test", "client", "personal", "domain", "class")  # before _<metric>
CLIENTS = 2000  # of one run, in distributions; of more, every n-th in order of the metric
ROWS = 200  # clients in a split's heat map
MAPS = 8  # heat maps of splits
WORST = 5  # clients that are listed


def content(paths: Sequence[str | Path], title: str = "", required: bool = True, labels: Labels = ()) -> dict[str, Any]:
    runs, problems = readable(find_runs(paths, required))
    tuned = tunings(paths, problems)
    if required and not runs and not tuned:
        raise FedloomError(f"report: {problems[0]['path']} cannot be shown: {problems[0]['reason']}")
    of_tunings = [method for tuning in tuned for method in tuning["methods"]]
    rows = dict.fromkeys([*(run.row for run, _, _ in runs), *(method["method"] for method in of_tunings)])
    names = read_labels(labels, list(rows), required) if labels else {}
    for method in of_tunings:
        method["method"] = names.get(method["method"], method["method"])
    series = group([run for run, _, _ in runs], names)
    objects = {run.path: (numbers, analysis) for run, numbers, analysis in runs}
    published, metrics = _published(series), _metrics([run for run, _, _ in runs])
    shown = [_series(item, objects) for item in series]
    return {
        "title": title or origin.title(series, tuned),
        "version": __version__,
        "date": origin.date(),
        "origins": origin.origins(series),
        "problems": problems,
        "metrics": metrics,
        "bold": mark_bold(shown, metrics),
        "series": shown,
        "recipe": recipe_table(series),
        "splits": _splits(series),
        "published": published,
        "protocols": notes(row["paper"] for row in published),
        "reproduced": reproduced(paths),
        "tunings": tuned,
    }


def readable(folders: Sequence[RunFiles]) -> tuple[list[tuple[RunFiles, JsonObject, JsonObject]], list[dict[str, str]]]:
    """The runs that can be shown, each with its numbers and its analysis; and the problems of folders."""
    runs, problems = [], []
    for run in folders:
        try:
            run.check()
            numbers, _ = _run(run), run.identity
            if run.log_problem:
                problems.append({"path": str(run.path), "reason": run.log_problem})
        except DAMAGE as error:
            problems.append({"path": str(run.path), "reason": _reason(error)})
            continue
        damaged: list[str] = []
        analysis = analysis_sections(run, damaged)
        problems += [{"path": str(run.path), "reason": reason} for reason in damaged]
        runs.append((run, numbers, analysis))
    return runs, problems


def _reason(error: Exception) -> str:
    if isinstance(error, FedloomError):
        return str(error)
    return one_line(f"a file in it is damaged ({type(error).__name__}: {brief(str(error))})")


def _series(item: Series, objects: Mapping[Path, tuple[JsonObject, JsonObject]]) -> dict[str, Any]:
    runs = []
    analyzed = False
    for run in item.runs:
        numbers, analysis = objects[run.path]
        if analyzed:  # matrices and points of one run are enough for a series
            analysis = {name: value for name, value in analysis.items() if name in ("rounds", "summary")}
        analyzed = analyzed or bool(analysis)
        runs.append({**numbers, "analysis": analysis} if analysis else numbers)
    return {"label": item.label, "method": item.runs[0].method, "runs": runs}


def _metrics(runs: Sequence[RunFiles]) -> list[dict[str, str]]:
    """The metrics of all runs, each once; the first run's headline is the page's."""
    described = {metric["name"]: metric for run in reversed(runs) for metric in reversed(run.metrics)}
    return list(reversed(described.values()))


def _run(run: RunFiles) -> dict[str, Any]:
    lines = run.rounds
    numbers: dict[str, Any] = {
        "path": str(run.path),
        "seed": run.fields.get("seed"),
        "rounds": run.fields.get("rounds"),
        "done": len(lines),
        "finished": run.finished,
        "summary": _summary(run),
        "curves": _curves(lines, [metric["name"] for metric in run.metrics]),
    }
    if run.class_names != [str(label) for label in range(len(run.class_names))]:
        numbers["classes"] = run.class_names
    if run.client_names:
        numbers["names"] = run.client_names
    for metric in run.metrics:
        for name in (metric["name"], f"personal_{metric['name']}"):
            values = [(number(v), k) for k, v in enumerate(run.clients.get(name) or []) if v is not None]
            if values:
                known = [(v, k) for v, k in values if v is not None]
                numbers.setdefault("clients", {})[name] = _clients(known, metric["better"] == "lower")
    if run.fine_tunings:
        personal = [f"personal_{metric['name']}" for metric in run.metrics]
        numbers["tuned"] = [
            {key: item.get(key) for key in ("part", "epochs", "lr", "loss", *personal)}
            for item in run.fine_tunings
            if any(item.get(name) for name in personal) and not item.get("sample")  # not of a sample of the clients
        ]
    return numbers


def _summary(run: RunFiles) -> dict[str, Any]:
    names = (f"{kind}_{metric['name']}" for metric in run.metrics for kind in IN_SUMMARY)
    more = ("best_by_validation", "site_means", "train_loss", "rounds", "lost", "seconds", "bytes_down", "bytes_up")
    return {
        name: run.summary[name]
        for name in (*names, *more, "parameters", "seconds_by", "shared", "personal", "epsilon", "digest")
        if name in run.summary
    }


def _curves(lines: Sequence[dict[str, Any]], metrics: Sequence[str]) -> dict[str, Any]:
    """One list per quantity; seconds (without evaluation) and bytes are cumulative."""
    if not lines:
        return {"round": [], "seconds": [], "bytes": []}
    curves: dict[str, Any] = {
        "round": [line["round"] for line in lines],
        "seconds": [number(v) for v in np.cumsum([line["seconds"] for line in lines])],
        "bytes": [int(v) for v in np.cumsum([line["bytes_down"] + line["bytes_up"] for line in lines])],
    }
    of_metrics = [f"{kind}_{metric}" for metric in metrics for kind in CURVES]
    for name in ("train_loss", *of_metrics, "lr", "lost"):
        values = [number(line.get(name)) for line in lines]
        if any(value is not None for value in values):
            curves[name] = values
    selectors = [line.get("selectors") or {} for line in lines]
    if any(selectors):
        curves["selectors"] = _selectors(selectors)
    return curves


def _selectors(lines: Sequence[dict[str, Any]]) -> dict[str, list[list[float | None]]]:
    """Layer (and statistic, where they differ) -> one list of shares per round."""
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


def _clients(values: list[tuple[float, int]], lower_is_better: bool) -> dict[str, Any]:
    """A distribution, and the clients for which the metric is worst."""
    ordered = sorted(values)
    picked = ordered
    if len(ordered) > CLIENTS:
        picked = [ordered[i] for i in np.linspace(0, len(ordered) - 1, CLIENTS).round().astype(int)]
    last = ordered[: -WORST - 1 : -1] if lower_is_better else ordered[:WORST]
    worst = [{"client": client, "value": value} for value, client in last]
    return {"values": [value for value, _ in picked], "count": len(ordered), "worst": worst}


def _splits(series: Sequence[Series]) -> list[dict[str, Any]]:
    """One heat map for each different partition."""
    splits: dict[str, dict[str, Any]] = {}
    for item in series:
        for run in item.runs:
            try:
                key = hashlib.sha256((run.path / "partition.npz").read_bytes()).hexdigest()
            except OSError:
                continue
            if key in splits:
                splits[key]["series"].append(item.label)
                continue
            counts = run.class_counts() if len(splits) < MAPS else None
            if counts is None:
                continue
            name = f"{run.fields.get('data.name')}, {run.fields.get('split')}, seed {run.fields.get('seed')}"
            if name in (other["label"] for other in splits.values()):
                name += f", of {item.label}"
            splits[key] = {
                "label": name,
                "series": [item.label],
                "clients": len(counts),
                "counts": counts[:ROWS].tolist(),
                "classes": run.class_names,
                "names": run.client_names[:ROWS],
                "sizes": [int(v) for v in np.percentile(counts.sum(1), [0, 25, 50, 75, 100])],
            }
    return list(splits.values())


def _published(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Rows of the papers' tables, each with our values of the same measure."""
    rows = []
    for place, item in enumerate(series):
        fields = item.runs[0].fields
        for row in matching(fields, str(fields.get("method", ""))):
            side = our_values(item.runs, row["measure"])
            beside = {"ours": side.values, "lacking": side.lacking, "differs": [*row["differs"], *side.differs]}
            columns = {
                name: row[name] for name in ("paper", "table", "method", "value", "deviation", "setting", "flag")
            }
            rows.append(
                {"series": place, **columns, "best_of": row["best_of"], "measure": label(row["measure"]), **beside}
            )
    return rows
