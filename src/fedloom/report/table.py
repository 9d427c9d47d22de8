"""Tables for the terminal: results of a run, a comparison or a fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from fedloom.evaluation.personalization import PersonalizationResult
from fedloom.runs.comparison import Comparison


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


def summary_table(summary: Mapping[str, Any]) -> Table:
    table = plain_table(str(summary["method"]), ["", "value"])
    clients = summary["client_accuracy"]
    alone = summary["shared"] == 0 and summary["personal"] > 0  # nothing is shared: the global model is never trained
    global_model = "initial model" if alone else "global model"
    pooled = "initial model" if alone else "global accuracy"
    table.add_row(f"{pooled}, pooled test set", percent(summary["test_accuracy"]))
    if "clean_test_accuracy" in summary:
        table.add_row("the same on unshifted images", percent(summary["clean_test_accuracy"]))
    table.add_row(f"{global_model} on each client's test set", percent(clients["mean"], clients["std"]))
    if "personal_accuracy" in summary:
        own = summary["personal_accuracy"]
        table.add_row("each client's own model on its test set", percent(own["mean"], own["std"]))
    if "best_by_validation" in summary:
        best = summary["best_by_validation"]
        table.add_row(f"round {best['round']}, best on validation", percent(best["test_accuracy"]))
    table.add_row("seconds per round", f"{summary['seconds'] / summary['rounds']:.3f}")
    traffic = (summary["bytes_down"] + summary["bytes_up"]) / summary["rounds"]
    table.add_row("traffic per round", size(traffic))
    if "epsilon" in summary:
        epsilon = "none" if summary["epsilon"] is None else f"{summary['epsilon']:.3g}"
        table.add_row(f"epsilon at delta {summary['delta']:.2g}, per client", epsilon)
    if summary["lost"]:
        table.add_row("uploads lost", str(summary["lost"]))
    return table


def time_line(summary: Mapping[str, Any]) -> str:
    """Time by activity in percent, the largest first; shares below 0.5 % are left out."""
    spent = summary["seconds_by"]
    total = sum(spent.values())
    shares = sorted(((100 * seconds / total, name) for name, seconds in spent.items() if total), reverse=True)
    text = ", ".join(f"{name} {share:.0f} %" for share, name in shares if share >= 0.5)
    return f"{total:.1f} s: {text}" if text else f"{total:.1f} s"


def domain_table(summary: Mapping[str, Any]) -> Table | None:
    """Accuracy by domain; None if the data set has no domains."""
    accuracies = summary.get("domain_accuracy")
    if not accuracies:
        return None
    table = plain_table("global accuracy in % by domain", ["domain", "accuracy"])
    for name, accuracy in accuracies.items():
        table.add_row(escape(name), percent(accuracy))
    table.add_row("mean of domains", percent(sum(accuracies.values()) / len(accuracies)))
    return table


def comparison_legend(comparison: Comparison) -> str:
    text = (
        "global: the global model on the pooled test set; clients: before fine-tuning, on each client's own test set, with "
        "the client's own model if the method has one"
    )
    if comparison.fine_tuning:
        t = comparison.fine_tuning
        text += f"; personal: the same after {t.epochs} epochs of fine-tuning ({t.part}, {t.rate_share:g} x the method's lr)"
        text += "; worst: the lowest of all clients; unseen: on test samples of classes without training samples"
    return text + "."


def personal_table(result: PersonalizationResult) -> Table:
    table = plain_table(
        f"accuracy in % on each client's own test set, fine-tuning {result.part} at lr {result.lr:g}",
        ["epochs", "mean ± deviation", "worst", "Q1", "median", "Q3"],
    )
    for epoch, row in enumerate(result.curve):
        if row["clients"]:
            rest = (percent(row[name]) for name in ("worst", "q1", "median", "q3"))
            name = "0 (initial)" if epoch == 0 else str(epoch)
            table.add_row(name, percent(row["mean"], row["std"]), *rest)
    return table


def listing(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Table:
    """Rows of a registry as a table; `columns` maps keys to titles."""
    table = plain_table("", list(columns.values()), len(columns))
    for row in rows:
        table.add_row(*(escape(_text(row.get(key, ""))) for key in columns))
    return table


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
