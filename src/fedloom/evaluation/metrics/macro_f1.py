"""Macro F1: the unweighted mean of the classes' F1 scores."""

from __future__ import annotations

import math

import numpy as np

from fedloom.evaluation.metrics.metric import Metric, Scores, Targets


class MacroF1(Metric):
    """Unweighted mean of the F1 scores of all classes that occur in the targets or in the predictions.

    A class that is predicted but does not occur has an F1 score of 0.
    """

    name, title, bounds = "macro_f1", "macro F1", (0.0, 1.0)

    def load(self) -> None:
        import sklearn.metrics  # noqa: F401

    def compute(self, scores: Scores, targets: Targets) -> float:
        from sklearn.metrics import f1_score  # slow to import

        return float(f1_score(targets, scores.argmax(1), average="macro", zero_division=0))

    def by_class(self, scores: Scores, targets: Targets) -> list[float]:
        from sklearn.metrics import f1_score

        predicted = scores.argmax(1)
        labels = np.union1d(targets, predicted)
        values = f1_score(targets, predicted, labels=labels, average=None, zero_division=0)
        by_label = dict(zip(labels.tolist(), values, strict=True))
        return [float(by_label.get(label, math.nan)) for label in range(scores.shape[1])]
