"""Cost: accuracy per second and per megabyte, and the cost of reaching a value of the headline metric.

FNR-FL, table 4: kappa = accuracy * 10^4 / time, rho = accuracy * 10^4 / traffic. Accuracy is in [0, 1] after the last round,
time in seconds over all rounds (without evaluation and analysis), traffic in megabytes (10^6 bytes) down and up. The paper
does not state the units of time and traffic. A run without accuracy among its metrics has no kappa and rho.

A target is reached in the first round whose headline metric on test samples is at least the target, or at most for a metric
that is better when lower; nothing is selected by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.errors import FedloomError
from fedloom.evaluation.metrics import Metric, find_metric

TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of a share that is better when higher
LOWER_TARGETS = (0.2, 0.1, 0.05, 0.02, 0.01)  # of a share that is better when lower
FRACTIONS = (0.5, 0.75, 0.9, 1.0)  # of any other number: of the way from its first value to its best


def cost(
    rounds: Sequence[Mapping[str, Any]], targets: Sequence[float] | None = None, headline: str = "accuracy"
) -> dict[str, Any]:
    """From the lines of rounds.jsonl. Without `targets`, those that suit the metric."""
    metric = find_metric(headline)
    accuracy = _last(rounds, "test_accuracy")
    seconds = sum(line["seconds"] for line in rounds)
    down, up = (sum(line[name] for line in rounds) / 1e6 for name in ("bytes_down", "bytes_up"))
    wanted = default_targets(rounds, metric) if targets is None else targets
    return {
        f"test_{headline}": _last(rounds, f"test_{headline}"),
        "seconds": seconds,
        "megabytes": down + up,
        "megabytes_down": down,
        "megabytes_up": up,
        "kappa": accuracy * 1e4 / seconds if seconds and accuracy is not None else None,
        "rho": accuracy * 1e4 / (down + up) if down + up and accuracy is not None else None,
        "targets": [
            _reached(rounds, target, metric) for target in sorted(set(wanted), reverse=metric.better == "lower")
        ],
    }


def check_targets(targets: Sequence[float], metric: Metric) -> None:
    """Refuse targets that the metric cannot have."""
    for target in targets:
        low, high = (0.0, 1.0) if metric.format == "percent" else metric.bounds
        useless = target == low and metric.better == "higher"  # every run begins beyond it
        if not low <= target <= high or useless:
            limits = "above" if metric.better == "higher" else "of at least"
            least = f"{limits} {low:g}" + (f" and at most {high:g}" if high < math.inf else "")
            raise FedloomError(f"target: a value of {metric.name} {least} is expected (got {target:g})")


def default_targets(rounds: Sequence[Mapping[str, Any]], metric: Metric) -> list[float]:
    if metric.format == "percent":
        return list(TARGETS if metric.better == "higher" else LOWER_TARGETS)
    values = [value for line in rounds if (value := line.get(f"test_{metric.name}")) is not None]
    if not values:
        return []
    first, best = values[0], metric.best(values)
    exact = [first + fraction * (best - first) for fraction in FRACTIONS[:-1]]
    return [*(float(f"{value:.3g}") for value in exact), best]


def _last(rounds: Sequence[Mapping[str, Any]], name: str) -> float | None:
    value: float | None = next((line[name] for line in reversed(rounds) if name in line), None)
    return value


def _reached(rounds: Sequence[Mapping[str, Any]], target: float, metric: Metric) -> dict[str, Any]:
    seconds = megabytes = 0.0
    for line in rounds:
        seconds += line["seconds"]
        megabytes += (line["bytes_down"] + line["bytes_up"]) / 1e6
        value = line.get(f"test_{metric.name}")
        if value is not None and not metric.is_better(target, value):
            return {"target": target, "round": line["round"], "seconds": seconds, "megabytes": megabytes}
    return {"target": target, "round": None, "seconds": None, "megabytes": None}
