"""The interface of a metric, and the registry of all metrics.

Scores are what the model returns, one row per sample and one column per class; targets are class numbers. A metric that
needs probabilities takes the softmax of the scores.
"""

from __future__ import annotations

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedloom.errors import FedloomError, shown
from fedloom.io.user_code import same_origin
from fedloom.nearest import unknown_metric

Scores = npt.NDArray[np.float64]  # (N, C)
Targets = npt.NDArray[np.int64]  # (N,)
Better = Literal["higher", "lower"]
Format = Literal["percent", "number"]

METRICS: dict[str, Metric] = {}
TAKEN = ("round", "tested")  # columns of clients.jsonl, whose others are named by metrics


class Metric(ABC):
    """A function of (scores, targets). A subclass registers itself under its name.

    >>> class ErrorRate(fl.Metric):
    ...     name, better = "error_rate", "lower"
    ...
    ...     def compute(self, scores, targets):
    ...         return float((scores.argmax(1) != targets).mean())
    >>> measured = fl.run(metrics=["accuracy", "error_rate"], clients=5, rounds=1, model="linear")
    >>> round(measured.metric("accuracy") + measured.metric("error_rate"), 6)
    1.0
    """

    name: ClassVar[str]  # in recipes, in column names and in JSON keys such as test_<name>
    title: ClassVar[str]  # in tables and figures; by default the name in words
    better: ClassVar[Better] = "higher"
    format: ClassVar[Format] = "percent"
    # values outside are refused where a node reports them
    bounds: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    # whether it is a mean over samples: then the value of all clients together is the mean of theirs, weighted by samples
    sample_mean: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not inspect.isabstract(cls) and "name" in vars(cls):
            register(cls)

    @abstractmethod
    def compute(self, scores: Scores, targets: Targets) -> float:
        """The metric of these samples; NaN where it is undefined. There is at least one sample."""

    def by_class(self, scores: Scores, targets: Targets) -> list[float]:
        """One value per class, NaN where it is undefined; by default the metric of the samples of that class alone."""
        values = []
        for label in range(scores.shape[1]):
            inside = targets == label
            values.append(self.compute(scores[inside], targets[inside]) if inside.any() else math.nan)
        return values

    def load(self) -> None:
        """Import what `compute` needs. It is called before workers are forked, so that not each of them imports it."""
        return

    def note(self, classes: int) -> str | None:
        """What a user with that many classes should know of the metric."""
        return None

    @property
    def heading(self) -> str:
        """The title with its unit."""
        return f"{self.title} in %" if self.format == "percent" else self.title

    def text(self, value: float | None, deviation: float | None = None) -> str:
        """A value as tables show it: percentages with one digit, other numbers with three; a dash where undefined."""
        if value is None or math.isnan(value):
            return "-"
        numbers = [value] if deviation is None else [value, deviation]
        return " ± ".join(f"{100 * v:.1f}" if self.format == "percent" else f"{v:.3f}" for v in numbers)

    def is_better(self, value: float, other: float) -> bool:
        return value > other if self.better == "higher" else value < other

    def best(self, values: Sequence[float]) -> float:
        """The best value; NaN if none is known."""
        known = [value for value in values if not math.isnan(value)]
        return (max if self.better == "higher" else min)(known, default=math.nan)


def register(metric: type[Metric]) -> None:
    """Make a metric known. A second class with the same name replaces the first only from the same place."""
    if not isinstance(metric.name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", metric.name):
        raise FedloomError(
            f"a metric is called {shown(metric.name)}; a name is a lower-case letter, then lower-case letters, digits and _"
        )
    if metric.name in TAKEN or metric.name.startswith("personal_"):
        raise FedloomError(f"a metric is called {metric.name!r}, which is another column's name; choose another")
    for field, allowed in (("better", ("higher", "lower")), ("format", ("percent", "number"))):
        if getattr(metric, field) not in allowed:
            raise FedloomError(
                f"metric {metric.name}: {field} is {shown(getattr(metric, field))}; allowed are {' and '.join(allowed)}"
            )
    known = METRICS.get(metric.name)
    if known is not None and not _same(type(known), metric):
        module = type(known).__module__
        raise FedloomError(f"two metrics are called {metric.name!r}: {module} has it already; choose another name")
    if not hasattr(metric, "title"):
        metric.title = metric.name.replace("_", " ")
    METRICS[metric.name] = metric()


def find_metric(name: str) -> Metric:
    if name not in METRICS:
        raise FedloomError(unknown_metric(name, METRICS))
    return METRICS[name]


def check(names: Sequence[str]) -> None:
    """Refuse names that no metric has; call it after the user's parts are imported."""
    for name in names:
        find_metric(name)


def log_softmax(scores: Scores) -> Scores:
    shifted = scores - scores.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def softmax(scores: Scores) -> Scores:
    return np.asarray(np.exp(log_softmax(scores)))


def list_metrics() -> list[dict[str, str]]:
    """Every metric as a row of a table."""
    return [
        {
            "name": name,
            "title": metric.title,
            "better": metric.better,
            "format": metric.format,
            "summary": (inspect.getdoc(metric) or "").split("\n\n")[0].replace("\n", " ").rstrip("."),
        }
        for name, metric in sorted(METRICS.items())
    ]


def _same(known: type[Metric], metric: type[Metric]) -> bool:
    return same_origin(known, metric) and known.__qualname__ == metric.__qualname__
