"""Area under the ROC curve, one class against the rest.

    AUROC_c = (R_c - n_c (n_c + 1) / 2) / (n_c (N - n_c))        R_c: sum of the ranks of class c's samples

The rank sum of Mann and Whitney, with mean ranks for ties, is the area that scikit-learn's `roc_auc_score` integrates. It is
not taken from there because it is computed for every client: with ten classes and 50 samples, ROC curves take 60 times as long.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedloom.evaluation.metrics.metric import Metric, Scores, Targets, softmax


class Auroc(Metric):
    """Area under the ROC curve of a class against the rest, unweighted mean over classes.

    Samples are ranked by the class's softmax probability. A class without positive or without negative samples has no
    curve and is left out; NaN if all are, as on a client with a single class. With two classes both curves have the same
    area, that of the binary problem.
    """

    name, title, bounds = "auroc", "AUROC", (0.0, 1.0)

    def compute(self, scores: Scores, targets: Targets) -> float:
        areas = [area for area in self.by_class(scores, targets) if not math.isnan(area)]
        return float(np.mean(areas)) if areas else math.nan

    def by_class(self, scores: Scores, targets: Targets) -> list[float]:
        total, classes = scores.shape
        counts = np.bincount(targets, minlength=classes)
        areas = np.full(classes, math.nan)
        present = np.flatnonzero((counts > 0) & (counts < total))
        if len(present) and np.isfinite(scores).all():
            probabilities = softmax(scores)
            for label in present.tolist():
                positive = counts[label]
                above = _ranks(probabilities[:, label])[targets == label].sum() - positive * (positive + 1) / 2
                areas[label] = above / (positive * (total - positive))
        return [float(area) for area in areas]


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """1 for the lowest; equal values share the mean of their ranks."""
    _, place, ties = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(ties) - (ties - 1) / 2)[place])
