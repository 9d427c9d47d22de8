"""Metrics of a classifier: functions of (scores, targets). One file per metric.

Every module of this package is imported, so a new file registers its metric by itself. A user's metric is a subclass of
`Metric` in a file that is named with `--parts`.

    compute(["accuracy", "macro_f1"], scores, targets)  ->  {"accuracy": 0.91, "macro_f1": 0.87}
"""

import importlib
import pkgutil

from fedloom.evaluation.metrics.compute import compute, compute_by_class
from fedloom.evaluation.metrics.metric import METRICS, Metric, Scores, Targets, check, find_metric, list_metrics

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "METRICS",
    "Metric",
    "Scores",
    "Targets",
    "check",
    "compute",
    "compute_by_class",
    "find_metric",
    "list_metrics",
]
