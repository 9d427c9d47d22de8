"""Tables for the terminal: results of a run, a comparison or a fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from fedloom.evaluation.fine_tuned import PersonalizationResult
from fedloom.evaluation.metrics import Metric, find_metric
from fedloom.studies.comparison import Comparison


def percent(mean: float, deviation: float | None = None) -> str:
    return f"{100 * mean:.1f}" if deviation is None else f"{100 * mean:.1f} ± {100 * deviation:.1f}"


def size(count: float) -> str:
    """Bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"


def plain_table(title: str, columns: Sequence[str], text_columns: int = 1) -> Table:
    table = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        words = number < text_columns
        table.add_column(column, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    return table


def summary_table(summary: Mapping[str, Any], metrics: Sequence[str] = ("accuracy",), title: str = "") -> Table:
    """One column per metric; numbers that are no metric are in the first. `title`: the method, as the user called it."""
    shown = [find_metric(name) for name in metrics if f"test_{name}" in summary]
    single = [metric.name for metric in shown] == ["accuracy"]
    table = plain_table(title or str(summary["method"]), ["", *(["value"] if single else [m.heading for m in shown])])

    def row(title: str, kind: str, values: Mapping[str, Any] = summary) -> None:
        if any(f"{kind}_{metric.name}" in values for metric in shown):
            table.add_row(title, *(_entry(metric, values.get(f"{kind}_{metric.name}")) for metric in shown))

    alone = summary["shared"] == 0 and summary["personal"] > 0  # nothing is shared: the global model is never trained
    global_model = "initial model" if alone else "global model"
    row(f"{'global accuracy' if single and not alone else global_model}, pooled test set", "test")
    row("the same on unshifted samples", "clean_test")
    row(f"{global_model} on each client's test set", "client")
    row("each client's own model on its test set", "personal")
    if "best_by_validation" in summary:
        best = summary["best_by_validation"]
        row(f"round {best['round']}, best on validation", "test", best)
    table.add_row("seconds per round", f"{summary['seconds'] / summary['rounds']:.3f}")
    traffic = (summary["bytes_down"] + summary["bytes_up"]) / summary["rounds"]
    table.add_row("traffic per round", size(traffic))
    if "epsilon" in summary:
        epsilon = "none" if summary["epsilon"] is None else f"{summary['epsilon']:.3g}"
        table.add_row(f"epsilon at delta {summary['delta']:.2g}, per client", epsilon)
    if summary["lost"]:
        table.add_row("uploads lost", str(summary["lost"]))
    return table


def metric_notes(summary: Mapping[str, Any]) -> list[str]:
    """What a reader of the summary's table should know."""
    notes = []
    for name, value in summary.items():
        if isinstance(value, Mapping) and value.get("undefined"):
            kind, _, metric = name.partition("_")
            whose = "the global model" if kind == "client" else "their own models"
            notes.append(
                f"{metric} of {whose} is undefined for {value['undefined']} clients, which are left out of its mean"
            )
    if means := summary.get("site_means"):
        notes.append(
            f"{', '.join(means)} on the pooled test set: mean over sites, weighted by their test samples, since no one has "
            f"all scores"
        )
    return notes


def _entry(metric: Metric, value: Any) -> str:
    if isinstance(value, Mapping):
        return metric.text(value.get("mean"), value.get("std"))
    return metric.text(value)


def time_line(summary: Mapping[str, Any]) -> str:
    """Time by activity in percent, the largest first; shares below 0.5 % are left out."""
    spent = summary["seconds_by"]
    total = sum(spent.values())
    shares = sorted(((100 * seconds / total, name) for name, seconds in spent.items() if total), reverse=True)
    text = ", ".join(f"{name} {share:.0f} %" for share, name in shares if share >= 0.5)
    return f"{total:.1f} s: {text}" if text else f"{total:.1f} s"


MOST_CLASSES = 20  # in a table of the terminal


def group_tables(summary: Mapping[str, Any], metrics: Sequence[str] = ("accuracy",)) -> list[Table]:
    """Metrics of the global model by domain, where the data set has domains, and by class, where there are few."""
    tables = []
    for kind, most in (("domain", math.inf), ("class", MOST_CLASSES)):
        shown = [find_metric(name) for name in metrics if summary.get(f"{kind}_{name}")]
        groups = list(summary[f"{kind}_{shown[0].name}"]) if shown else []
        if not groups or len(groups) > most:
            continue
        single = [metric.name for metric in shown] == ["accuracy"]
        title = "global accuracy in %" if single else "global model"
        headings = ["accuracy"] if single else [metric.heading for metric in shown]
        table = plain_table(f"{title} by {kind}", [kind, *headings])
        values = {metric.name: summary[f"{kind}_{metric.name}"] for metric in shown}
        for group in groups:
            table.add_row(escape(group), *(metric.text(values[metric.name].get(group)) for metric in shown))
        if kind == "domain":
            table.add_row("mean of domains", *(metric.text(_mean(values[metric.name])) for metric in shown))
        tables.append(table)
    return tables


def _mean(values: Mapping[str, float | None]) -> float | None:
    known = [value for value in values.values() if value is not None]
    return sum(known) / len(known) if known else None


def comparison_legend(comparison: Comparison) -> str:
    text = (
        "global: the global model on the pooled test set; clients: before fine-tuning, on each client's own test set, with "
        "the client's own model if the method has one"
    )
    if comparison.fine_tuning:
        t = comparison.fine_tuning
        text += f"; personal: the same after {t.epochs} epochs of fine-tuning ({t.part}, {t.rate_share:g} x the method's lr)"
        higher = all(find_metric(name).better == "higher" for name in comparison.metrics)
        worst = "the lowest of all clients" if higher else "of the client that fares worst"
        text += f"; personal, worst: {worst}; personal, unseen: on test samples of classes without training samples"
    return text + "."


def personal_table(result: PersonalizationResult, name: str = "") -> Table:
    """One row per epoch; `name`: a metric other than the headline."""
    tuned = result.of(name) if name else result.headline
    metric = find_metric(tuned.metric)
    table = plain_table(
        f"{metric.heading} on each client's own test set, fine-tuning {result.part} at lr {result.lr:g}",
        ["epochs", "mean ± deviation", "worst", "Q1", "median", "Q3"],
    )
    for epoch, row in enumerate(tuned.curve):
        if row["clients"]:
            rest = (metric.text(row[name]) for name in ("worst", "q1", "median", "q3"))
            label = "0 (initial)" if epoch == 0 else str(epoch)
            table.add_row(label, metric.text(row["mean"], row["std"]), *rest)
    return table
