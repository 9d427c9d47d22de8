"""Balanced accuracy: the mean of the classes' recalls."""

from __future__ import annotations

import numpy as np

from fedloom.evaluation.metrics.metric import Metric, Scores, Targets


class BalancedAccuracy(Metric):
    """Unweighted mean of the recalls of all classes that occur in the targets.

    By class it is the recall of the class.
    """

    name, title, bounds = "balanced_accuracy", "balanced accuracy", (0.0, 1.0)

    def load(self) -> None:
        import sklearn.metrics  # noqa: F401

    def compute(self, scores: Scores, targets: Targets) -> float:
        from sklearn.metrics import recall_score  # slow to import

        return float(recall_score(targets, scores.argmax(1), labels=np.unique(targets), average="macro"))
