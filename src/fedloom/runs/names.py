"""Metrics of stored runs by name, also where the user's code that defines them is not loaded."""

from __future__ import annotations

from fedloom.evaluation.metrics import METRICS, Metric, Scores, Targets


class Unknown(Metric):
    """A metric of code that is not loaded: its numbers are shown as they are."""

    format = "number"

    def __init__(self, name: str) -> None:
        self.title = name.replace("_", " ")  # type: ignore[misc]

    def compute(self, scores: Scores, targets: Targets) -> float:
        raise NotImplementedError


def metric_named(name: str) -> Metric:
    return METRICS.get(name) or Unknown(name)
