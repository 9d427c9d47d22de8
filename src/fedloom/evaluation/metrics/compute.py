"""Computing metrics: checked inputs, values that are finite or NaN, errors that name the metric."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedloom.errors import CodeFailed, FedloomError
from fedloom.evaluation.metrics.metric import Metric, Scores, Targets, find_metric


def compute(names: Sequence[str], scores: Any, targets: Any) -> dict[str, float]:
    """Metrics by name, of scores (N, C) and targets (N,) as arrays or tensors. Without samples all are NaN."""
    metrics = [find_metric(name) for name in names]
    matrix, labels = _checked(scores, targets)
    if not len(labels):
        return {metric.name: math.nan for metric in metrics}
    return {metric.name: _value(metric, matrix, labels) for metric in metrics}


def compute_by_class(name: str, scores: Any, targets: Any) -> list[float]:
    """One value of a metric per class, NaN where it is undefined."""
    metric = find_metric(name)
    matrix, labels = _checked(scores, targets)
    with _named(metric):
        values = [float(value) for value in metric.by_class(matrix, labels)]
    if len(values) != matrix.shape[1]:
        raise FedloomError(f"metrics: {name} has {len(values)} values by class; there are {matrix.shape[1]} classes")
    return values


def _checked(scores: Any, targets: Any) -> tuple[Scores, Targets]:
    matrix, labels = np.asarray(scores, dtype=np.float64), np.asarray(targets)
    if matrix.ndim != 2 or labels.shape != matrix.shape[:1]:
        raise FedloomError(
            f"metrics: scores must be (samples, classes) and targets (samples,); got {matrix.shape} and {labels.shape}"
        )
    whole = np.issubdtype(labels.dtype, np.integer)
    if len(labels) and (not whole or labels.min() < 0 or labels.max() >= matrix.shape[1]):
        raise FedloomError(f"metrics: targets must be class numbers from 0 to {matrix.shape[1] - 1}")
    return matrix, labels.astype(np.int64)


def _value(metric: Metric, scores: Scores, targets: Targets) -> float:
    with _named(metric):
        value = float(metric.compute(scores, targets))
    return value if math.isfinite(value) else math.nan


@contextmanager
def _named(metric: Metric) -> Iterator[None]:
    """A user's code may raise anything, or return what is no number: the error names the metric."""
    try:
        yield
    except FedloomError:
        raise
    except Exception as error:
        reason = f"metrics: {metric.name} failed: {type(error).__name__}: {error}"
        raise CodeFailed(reason, traceback.format_exc()) from error
