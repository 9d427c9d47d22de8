"""What the caption of a comparison says of the tuning before it: the budget, and the values that were chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedloom.evaluation.metrics import find_metric
from fedloom.studies.comparison import Comparison
from fedloom.studies.tune.chosen import ChosenSettings
from fedloom.studies.tune.fresh import Tuning


def caption(comparison: Comparison) -> str:
    """Sentences below the table; empty without a tuning."""
    tuning = comparison.tuning
    if tuning is None:
        return ""
    metric, items = find_metric(tuning.tuned.metric), [*tuning.chosen.values(), *tuning.diverged]
    if not items:
        return "No method of this table was tuned."
    chosen = "; ".join(f"{comparison.label(row)}: {_values(item)}" for row, item in tuning.chosen.items())
    texts = [
        f"Settings chosen by validation {metric.title} on {_seeds(tuning.tuned.seeds)}, with {_budget(items)}.",
        f"Chosen: {chosen}." if chosen else "",
        f"Final runs: {_seeds(comparison.seeds)}, which tuning never saw; {_data(tuning)}.",
    ]
    if tuning.changed:
        texts.append(f"Other than in the tuning: {', '.join(tuning.changed)}.")
    if untuned := [comparison.label(row) for row in comparison.rows if row not in tuning.chosen]:
        texts.append(f"Not tuned: {'; '.join(untuned)}.")
    if tuning.diverged:
        names = "; ".join(f"{comparison.label(item.method)} ({item.trials} trials)" for item in tuning.diverged)
        texts.append(f"All trials diverged: {names}.")
    return " ".join(text for text in texts if text)


def warnings(comparison: Comparison) -> list[str]:
    """What the tuning warned about, by method."""
    if comparison.tuning is None:
        return []
    rows = [*comparison.tuning.chosen.items(), *((item.method, item) for item in comparison.tuning.diverged)]
    texts = [(comparison.label(row), text) for row, item in rows for text in item.warnings]
    return [f"Warning of the tuning: {text if text.startswith(name) else f'{name}: {text}'}" for name, text in texts]


def _values(item: ChosenSettings) -> str:
    """Chosen fields and hyper-parameters: lr=0.31 fd.beta=0.9."""
    return " ".join(f"{name}={_short(value)}" for name, value in (item.tuned or item.settings).items()) or "nothing"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _budget(items: Sequence[ChosenSettings]) -> str:
    trials, rounds = _span(item.trials for item in items), _span(item.rounds for item in items)
    stopped = _span(item.stopped_early for item in items)
    early = f", {stopped} of them stopped early" if stopped != "0" else ""
    minutes = _span(round(item.seconds / 60, 1) for item in items)
    return f"{trials} trials per method{early} ({rounds} rounds, {minutes} min)"


def _span(numbers: Iterable[float]) -> str:
    known = sorted(numbers)
    return f"{known[0]:g}" if known[0] == known[-1] else f"{known[0]:g} to {known[-1]:g}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def _data(tuning: Tuning) -> str:
    if tuning.validation:
        return f"{100 * tuning.validation:g} % of the training samples are held out"
    return "clients hold all training samples"
