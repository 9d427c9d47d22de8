"""Series beside the best one, by the same test over seeds as in the tables of `compare`: bold numbers, intervals, p-values."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedloom.report.significance import MIN_SEEDS, RULE, Ranking, confidence_interval, rank

Run = Mapping[str, Any]  # as the page holds it
TEST = f"{RULE} Each column has a paired t-test over seeds, corrected for the number of series (Holm)."
NO_TEST = f"Nothing is bold: a paired test needs {MIN_SEEDS} seeds or more that series share."
OF_CLIENTS = {"clients": "client", "own": "personal"}


def mark_bold(series: Sequence[Mapping[str, Any]], metrics: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """By metric: which series are bold in which column of the table, and a sentence about it."""
    name_tunings([run for item in series for run in item["runs"]])
    judged = {metric["name"]: _columns(series, metric) for metric in metrics}
    bold = {name: {column: one["bold"] for column, one in of.items() if one["bold"]} for name, of in judged.items()}
    said = {name: "" if len(series) < 2 else TEST if columns else NO_TEST for name, columns in bold.items()}
    beside = {name: {column: one["beside"] for column, one in of.items()} for name, of in judged.items()}
    return {"of": bold, "said": said, "beside": beside}


def name_tunings(runs: Sequence[Run]) -> None:
    """The column of each fine-tuning. Methods are tuned at rates of their own; only several rates in one run are apart."""
    kinds = [[_kind(item) for item in run.get("tuned") or []] for run in runs]
    apart = {kind for own in kinds for kind in own if own.count(kind) > 1}
    for run in runs:
        for item in run.get("tuned") or []:
            item["column"] = f"{_kind(item)}, lr={item.get('lr')}" if _kind(item) in apart else _kind(item)


def _kind(item: Mapping[str, Any]) -> str:
    loss = item.get("loss") or "method"
    return f"tuned {item.get('part')}, {item.get('epochs')} ep.{'' if loss == 'method' else f', {loss} loss'}"


def _columns(series: Sequence[Mapping[str, Any]], metric: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """By column: the bold series, and every series beside the best."""
    values: dict[str, dict[int, dict[Hashable, float]]] = {}
    for place, item in enumerate(series):
        for run in item["runs"]:
            for column, value in _values(run, metric["name"]).items() if run["finished"] else ():
                if isinstance(value, int | float):
                    values.setdefault(column, {}).setdefault(place, {})[run["seed"]] = value
    rankings = {column: rank(samples, metric["better"]) for column, samples in values.items()}
    return {
        column: {"bold": sorted(ranking.bold), "beside": _beside(values[column], ranking)}
        for column, ranking in rankings.items()
        if ranking and any(len(by_seed) >= MIN_SEEDS for by_seed in values[column].values())
    }


def _beside(samples: Mapping[int, Mapping[Hashable, float]], ranking: Ranking[int]) -> list[dict[str, Any]]:
    """Every series with its mean, its interval, and its difference from the best."""
    rows = []
    for place, by_seed in samples.items():
        own = list(by_seed.values())
        row: dict[str, Any] = {"series": place, "seeds": len(own), "mean": fmean(own), "best": place == ranking.best}
        row["interval"] = confidence_interval(own)
        if (rival := ranking.rivals.get(place)) is not None and rival.seeds:
            row |= {"common": rival.seeds, "difference": rival.difference, "p": rival.p, "equal": rival.equal}
            row |= {"difference_interval": rival.interval, "close": rival.close, "tested": rival.p is not None}
        rows.append(row)
    return rows


def _values(run: Run, metric: str) -> dict[str, Any]:
    """The numbers of a finished run, by column."""
    summary = run["summary"]
    values = {"global": summary.get(f"test_{metric}"), "clean": summary.get(f"clean_test_{metric}")}
    values["validated"] = _inside(summary, "best_by_validation", f"test_{metric}")
    for column, kind in OF_CLIENTS.items():
        values[column] = _inside(summary, f"{kind}_{metric}", "mean")
        values[f"worst {column}"] = _inside(summary, f"{kind}_{metric}", "worst")
    for item in run.get("tuned") or []:
        values.setdefault(item["column"], _inside(item, f"personal_{metric}", "mean"))
    domains = summary.get(f"domain_{metric}")
    for domain in domains if isinstance(domains, Mapping) else ():
        values[f"domain {domain}"] = domains[domain]
    return values


def _inside(values: Mapping[str, Any], name: str, key: str) -> Any:
    """A number inside of another value; None if there is none, as in a damaged file."""
    group = values.get(name)
    return group.get(key) if isinstance(group, Mapping) else None
