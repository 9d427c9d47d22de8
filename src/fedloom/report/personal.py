"""Tables of personalization: accuracy over epochs, its distribution over clients, accuracy on unseen classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedloom.evaluation.personalization import PersonalizationResult
from fedloom.report.table import percent, personal_table, plain_table
from fedloom.runs.adopt import Adopted

__all__ = ["adopted_table", "distribution_table", "personal_table", "print_wide", "sweep_table", "unseen_line"]

BARS = "·▁▂▃▄▅▆▇█"
BINS = 10

ResultsByRun = Mapping[str, Sequence[PersonalizationResult]]


def sweep_table(results: ResultsByRun, shown: Sequence[int]) -> Table:
    """One row per combination and one column per epoch, as in FedBABU's Table 5. If `shown` is one number of at most 10
    epochs, all epochs up to it are columns."""
    last = shown[-1]
    columns = list(range(last + 1)) if len(shown) == 1 and last <= 10 else sorted({0, *shown})
    names, rows = _labels(results)
    table = _narrow(
        "accuracy in % on clients' own test sets by epochs of fine-tuning: mean, ± standard deviation over clients",
        names,
        [str(epoch) for epoch in columns],
    )
    for label, outcome in rows:
        means, deviations = [], []
        for epoch in columns:
            there = outcome.curve[epoch]
            means.append(percent(there["mean"]) if there["clients"] else "-")
            deviations.append(f"±{percent(there['std'])}" if there["clients"] else "")
        table.add_row(*map(escape, label), *means)
        table.add_row(*("" for _ in names), *deviations)
    return table


def distribution_table(results: ResultsByRun) -> Table:
    """The distribution over clients after the last epoch."""
    names, rows = _labels(results)
    table = _narrow(
        "clients after the last epoch",
        [*names, "0 … 100 %"],
        ["worst", "Q1", "median", "Q3", "global", "unseen classes"],
    )
    for label, outcome in rows:
        end = outcome.personal
        if not end["clients"]:
            continue
        before, after = outcome.unseen
        unseen = f"{percent(before['mean'])} → {percent(after['mean'])}" if before["clients"] else "-"
        quartiles = (percent(end[name]) for name in ("worst", "q1", "median", "q3"))
        known = [value for value in outcome.global_accuracy if value is not None]
        table.add_row(
            *map(escape, label),
            _histogram(outcome.accuracy[-1]),
            *quartiles,
            percent(sum(known) / len(known)) if known else "-",
            unseen,
        )
    return table


def unseen_line(results: ResultsByRun) -> str:
    if not any(outcome.unseen[0]["clients"] for outcomes in results.values() for outcome in outcomes):
        return ""
    return (
        "global: the served model on each client's test set. unseen classes: a client's model on test samples of classes "
        "without training samples, before → after fine-tuning."
    )


def print_wide(console: Console, table: Table) -> None:
    """Print at full width even in a narrow terminal: a wrapped line is better than a truncated number."""
    needed = table.__rich_measure__(console, console.options.update(width=1000, max_width=1000)).maximum
    Console(file=console.file, width=max(console.width, needed)).print(table)


def adopted_table(adopted: Adopted) -> Table:
    how = f"{adopted.part} for {adopted.epochs} epochs at lr {adopted.lr:g}"
    own = "held out: every fifth of its images" if adopted.held_out else "its own"
    table = plain_table("", ["a new client", "value"])
    table.add_row("training samples", str(adopted.train))
    table.add_row(f"test samples ({own})" if adopted.test else "test samples", str(adopted.test))
    table.add_row("global model", "unknown" if adopted.before is None else percent(adopted.before))
    if adopted.curve[0] != adopted.before:
        table.add_row(
            "its own, before fine-tuning", "unknown" if adopted.curve[0] is None else percent(adopted.curve[0])
        )
    table.add_row(f"fine-tuned, {how}", "unknown" if adopted.after is None else percent(adopted.after))
    return table


def _narrow(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold", padding=(0, 1, 0, 0))
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _labels(results: ResultsByRun) -> tuple[list[str], list[tuple[list[str], PersonalizationResult]]]:
    """The columns that differ between combinations, and the rows."""
    rows = [(run, outcome) for run, outcomes in results.items() for outcome in outcomes]
    labels: dict[str, list[str]] = {
        "run": [run for run, _ in rows],
        "part": [outcome.part for _, outcome in rows],
        "loss": [outcome.loss for _, outcome in rows],
        "lr": [f"{outcome.lr:g}" for _, outcome in rows],
    }
    names = [name for name, values in labels.items() if len(set(values)) > 1] or ["part"]
    return names, [([labels[name][i] for name in names], outcome) for i, (_, outcome) in enumerate(rows)]


def _histogram(values: Sequence[float | None]) -> str:
    """Clients in ten bins of accuracy of equal width; the highest bar is the largest bin."""
    counts = [0] * BINS
    for value in values:
        if value is not None:
            counts[min(int(value * BINS), BINS - 1)] += 1
    top = max(counts)
    return "".join(BARS[-(-count * (len(BARS) - 1) // top)] if top else BARS[0] for count in counts)
