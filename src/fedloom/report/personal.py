"""Tables of personal models: curves over epochs, how clients are spread, what is forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedloom.adopt import Adopted
from fedloom.measure.personal import Personal
from fedloom.report.table import percent, personal_table, plain_table

__all__ = ["adopted_table", "distribution_table", "personal_table", "print_wide", "sweep_table", "unseen_line"]

BARS = "·▁▂▃▄▅▆▇█"
BINS = 10

Found = Mapping[str, Sequence[Personal]]  # by run


def sweep_table(found: Found, shown: Sequence[int]) -> Table:
    """One row a combination, epochs across, as FedBABU's Table 5; a single number of epochs shows all up to it."""
    last = shown[-1]
    columns = list(range(last + 1)) if len(shown) == 1 and last <= 10 else sorted({0, *shown})
    names, rows = _labels(found)
    table = _narrow(
        "accuracy in % on clients' own test sets by epochs of fine-tuning: mean, ± deviation over clients",
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


def distribution_table(found: Found) -> Table:
    """How the clients are spread after the last epoch."""
    names, rows = _labels(found)
    table = _narrow(
        "clients after the last epoch",
        [*names, "0 … 100 %"],
        ["worst", "1/4", "median", "3/4", "global", "unseen classes"],
    )
    for label, outcome in rows:
        end = outcome.personal
        if not end["clients"]:
            continue
        before, after = outcome.unseen
        forgets = f"{percent(before['mean'])} → {percent(after['mean'])}" if before["clients"] else "-"
        spread = (percent(end[name]) for name in ("worst", "quarter", "median", "three_quarters"))
        known = [value for value in outcome.globally if value is not None]
        table.add_row(
            *map(escape, label),
            _histogram(outcome.accuracy[-1]),
            *spread,
            percent(sum(known) / len(known)) if known else "-",
            forgets,
        )
    return table


def unseen_line(found: Found) -> str:
    if not any(outcome.unseen[0]["clients"] for outcomes in found.values() for outcome in outcomes):
        return ""
    return (
        "global: the served model on each client's test set. unseen classes: a client's model on test images of classes "
        "that it has no training image of, before → after fine-tuning."
    )


def print_wide(console: Console, table: Table) -> None:
    """Whole, however narrow the terminal is: a number that is cut off is worse than a line that runs over."""
    needed = table.__rich_measure__(console, console.options.update(width=1000, max_width=1000)).maximum
    Console(file=console.file, width=max(console.width, needed)).print(table)


def adopted_table(found: Adopted) -> Table:
    how = f"{found.part} for {found.epochs} epochs at lr {found.lr:g}"
    own = "held out: every fifth of its images" if found.held_out else "its own"
    table = plain_table("", ["a new client", "value"])
    table.add_row("training images", str(found.train))
    table.add_row(f"test images ({own})" if found.test else "test images", str(found.test))
    table.add_row("global model", "unknown" if found.before is None else percent(found.before))
    if found.curve[0] != found.before:
        table.add_row("its own, before fine-tuning", "unknown" if found.curve[0] is None else percent(found.curve[0]))
    table.add_row(f"fine-tuned, {how}", "unknown" if found.after is None else percent(found.after))
    return table


def _narrow(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold", padding=(0, 1, 0, 0))
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _labels(found: Found) -> tuple[list[str], list[tuple[list[str], Personal]]]:
    """The columns that tell combinations apart, and the rows."""
    rows = [(run, outcome) for run, outcomes in found.items() for outcome in outcomes]
    told: dict[str, list[str]] = {
        "run": [run for run, _ in rows],
        "part": [outcome.part for _, outcome in rows],
        "loss": [outcome.loss for _, outcome in rows],
        "lr": [f"{outcome.lr:g}" for _, outcome in rows],
    }
    names = [name for name, values in told.items() if len(set(values)) > 1] or ["part"]
    return names, [([told[name][i] for name in names], outcome) for i, (_, outcome) in enumerate(rows)]


def _histogram(values: Sequence[float | None]) -> str:
    """Clients in ten equal bins of accuracy; the tallest bar is the fullest bin."""
    counts = [0] * BINS
    for value in values:
        if value is not None:
            counts[min(int(value * BINS), BINS - 1)] += 1
    top = max(counts)
    return "".join(BARS[-(-count * (len(BARS) - 1) // top)] if top else BARS[0] for count in counts)
