"""Tables of personalization: a metric over epochs, its distribution over clients, and on unseen classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedloom.evaluation.fine_tuned import PersonalizationResult
from fedloom.evaluation.metrics import Metric, find_metric
from fedloom.finished.adopt import Adopted
from fedloom.report.table import personal_table, plain_table

__all__ = [
    "adopted_table",
    "distribution_table",
    "personal_table",
    "print_wide",
    "shared_metrics",
    "sweep_table",
    "unseen_line",
]

BARS = "·▁▂▃▄▅▆▇█"
BINS = 10

ResultsByRun = Mapping[str, Sequence[PersonalizationResult]]


def sweep_table(results: ResultsByRun, shown: Sequence[int], name: str = "accuracy") -> Table:
    """One row per combination and one column per epoch, as in FedBABU's Table 5. If `shown` is one number of at most 10
    epochs, all epochs up to it are columns."""
    last = shown[-1]
    columns = list(range(last + 1)) if len(shown) == 1 and last <= 10 else sorted({0, *shown})
    names, rows = _labels(results)
    metric = find_metric(name)
    table = _narrow(
        f"{metric.heading} on clients' own test sets by epochs of fine-tuning: mean, ± standard deviation over clients",
        names,
        [str(epoch) for epoch in columns],
    )
    for label, outcome in rows:
        means, deviations = [], []
        for epoch in columns:
            there = outcome.of(name).curve[epoch]
            means.append(metric.text(there.get("mean")))
            deviations.append(f"±{metric.text(there['std'])}" if there["clients"] else "")
        table.add_row(*map(escape, label), *means)
        table.add_row(*("" for _ in names), *deviations)
    return table


def distribution_table(results: ResultsByRun, name: str = "accuracy") -> Table:
    """The distribution over clients after the last epoch."""
    metric, (names, rows) = find_metric(name), _labels(results)
    tuned = [(label, outcome.of(name)) for label, outcome in rows]
    low, high = _range(metric, [value for _, one in tuned for value in one.values[-1] if value is not None])
    ends = "0 … 100 %" if metric.format == "percent" else f"{metric.text(low)} … {metric.text(high)}"
    title = "clients after the last epoch" + ("" if name == "accuracy" else f", {metric.heading}")
    table = _narrow(title, [*names, ends], ["worst", "Q1", "median", "Q3", "global", "unseen classes"])
    for label, one in tuned:
        end = one.personal
        if not end["clients"]:
            continue
        before, after = one.unseen
        unseen = f"{metric.text(before['mean'])} → {metric.text(after.get('mean'))}" if before["clients"] else "-"
        quartiles = (metric.text(end[name]) for name in ("worst", "q1", "median", "q3"))
        known = [value for value in one.on_global if value is not None]
        table.add_row(
            *map(escape, label),
            _histogram(one.values[-1], low, high),
            *quartiles,
            metric.text(sum(known) / len(known) if known else None),
            unseen,
        )
    return table


def shared_metrics(results: ResultsByRun) -> list[str]:
    """The metrics that all fine-tunings have, the first one's headline first."""
    outcomes = [outcome for each in results.values() for outcome in each]
    known = [{one.metric for one in outcome.metrics} for outcome in outcomes]
    return [one.metric for one in outcomes[0].metrics if all(one.metric in names for names in known)]


def unseen_line(results: ResultsByRun) -> str:
    if not any(outcome.unseen[0]["clients"] for outcomes in results.values() for outcome in outcomes):
        return ""
    return (
        "global: the served model on each client's test set. unseen classes: a client's model on test samples of classes "
        "without training samples, before → after fine-tuning."
    )


def print_wide(console: Console, table: Table) -> None:
    """Print with all numbers, in a narrow terminal too: columns move together and texts wrap between words.

    Where that is not enough, and in a file or a pipe, lines are as long as they need to be: a wrapped line is better than a
    truncated number.
    """
    free = console.options.update(width=1000, max_width=1000)
    needed = table.__rich_measure__(console, free).maximum
    if console.is_terminal and needed > console.width:
        for gap in (1, 0):
            table.padding, table.show_edge = (0, gap, 0, 0), False
            needed = table.__rich_measure__(console, free).minimum
            if needed <= console.width:
                break
        _share_out(table, max(0, console.width - needed))
    width = max(console.width, needed)
    Console(file=console.file, width=width, quiet=console.quiet, emoji=False).print(table)


def _share_out(table: Table, spare: int) -> None:
    """Columns of text as wide as their longest word, the first ones wider while there is room."""
    for column in table.columns:
        if not column.no_wrap:
            texts = [Text.from_markup(str(cell)).plain for cell in (column.header, *column.cells)]
            longest_word = max((len(word) for text in texts for word in text.split()), default=0)
            extra = min(spare, max(map(len, texts)) - longest_word)
            column.width, spare = longest_word + extra, spare - extra


def adopted_table(adopted: Adopted) -> Table:
    how = f"{adopted.part} for {adopted.epochs} epochs at lr {adopted.lr:g}"
    own = "held out: every fifth of its samples" if adopted.held_out else "its own"
    metrics = {adopted.metric: (adopted.before, adopted.curve), **adopted.others}
    headings = ["value"] if list(metrics) == ["accuracy"] else [find_metric(name).heading for name in metrics]
    table = plain_table("", ["a new client", *headings])

    def row(title: str, values: Sequence[float | None]) -> None:
        texts = (find_metric(name).text(value) for name, value in zip(metrics, values, strict=True))
        table.add_row(title, *("unknown" if text == "-" else text for text in texts))

    table.add_row("training samples", str(adopted.train))
    table.add_row(f"test samples ({own})" if adopted.test else "test samples", str(adopted.test))
    row("global model", [before for before, _ in metrics.values()])
    if any(curve[0] != before for before, curve in metrics.values()):
        row("its own, before fine-tuning", [curve[0] for _, curve in metrics.values()])
    row(f"fine-tuned, {how}", [curve[-1] for _, curve in metrics.values()])
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


def _range(metric: Metric, values: Sequence[float]) -> tuple[float, float]:
    if metric.format == "percent" or not values:
        return 0.0, 1.0
    return min(values), max(values)


def _histogram(values: Sequence[float | None], low: float = 0.0, high: float = 1.0) -> str:
    """Clients in ten bins of equal width; the highest bar is the largest bin."""
    counts, width = [0] * BINS, high - low
    for value in values:
        if value is not None:
            counts[max(0, min(int((value - low) / width * BINS) if width else 0, BINS - 1))] += 1
    top = max(counts)
    return "".join(BARS[-(-count * (len(BARS) - 1) // top)] if top else BARS[0] for count in counts)
