"""The interface of a metric, its registry, and `compute`.

Scores are logits, one row per sample and one column per class; targets are class numbers. A metric that needs
probabilities takes the softmax of the scores.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedloom.errors import FedloomError, shown

Scores = npt.NDArray[np.float64]  # (N, C)
Targets = npt.NDArray[np.int64]  # (N,)

METRICS: dict[str, Metric] = {}


class Metric(ABC):
    """A subclass registers itself under its name."""

    name: ClassVar[str]  # in recipes, in column names and in JSON keys such as test_<name>
    title: ClassVar[str]  # in tables and figures
    better: ClassVar[Literal["higher", "lower"]] = "higher"
    format: ClassVar[Literal["percent", "number"]] = "percent"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not inspect.isabstract(cls) and "name" in vars(cls):
            register(cls())

    @abstractmethod
    def compute(self, scores: Scores, targets: Targets) -> float:
        """The metric of these samples; NaN where it is undefined. There is at least one sample."""

    def text(self, value: float) -> str:
        """A value as tables show it: percentages with one digit, other numbers with three."""
        return f"{100 * value:.1f}" if self.format == "percent" else f"{value:.3f}"

    def is_better(self, value: float, other: float) -> bool:
        return value > other if self.better == "higher" else value < other


def register(metric: Metric) -> None:
    """Make a metric known. A second class with the same name replaces the first only from the same place."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", metric.name):
        raise FedloomError(
            f"a metric is called {shown(metric.name)}; a name is a lower-case letter, then lower-case letters, digits and _"
        )
    known = METRICS.get(metric.name)
    if known is not None and _origin(known) != _origin(metric):
        module = type(known).__module__
        raise FedloomError(f"two metrics are called {metric.name!r}: {module} has it already; choose another name")
    METRICS[metric.name] = metric


def find_metric(name: str) -> Metric:
    if name not in METRICS:
        raise FedloomError(f"metrics: {shown(name)} is unknown; allowed are {', '.join(sorted(METRICS))}")
    return METRICS[name]


def compute(names: Sequence[str], scores: Any, targets: Any) -> dict[str, float]:
    """Metrics by name, of scores (N, C) and targets (N,) as arrays or tensors. Without samples all are NaN."""
    metrics = [find_metric(name) for name in names]
    matrix, labels = np.asarray(scores, dtype=np.float64), np.asarray(targets)
    if matrix.ndim != 2 or labels.shape != matrix.shape[:1]:
        raise FedloomError(
            f"metrics: scores must be (samples, classes) and targets (samples,); got {matrix.shape} and {labels.shape}"
        )
    if not len(labels):
        return {metric.name: float("nan") for metric in metrics}
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= matrix.shape[1]:
        raise FedloomError(f"metrics: targets must be class numbers from 0 to {matrix.shape[1] - 1}")
    labels = labels.astype(np.int64)
    return {metric.name: float(metric.compute(matrix, labels)) for metric in metrics}


def log_softmax(scores: Scores) -> Scores:
    shifted = scores - scores.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def softmax(scores: Scores) -> Scores:
    return np.asarray(np.exp(log_softmax(scores)))


def _origin(metric: Metric) -> tuple[str, str]:
    return type(metric).__module__, type(metric).__qualname__
