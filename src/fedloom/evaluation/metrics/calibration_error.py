"""Expected calibration error (Guo et al. 2017, equation 5).

    ECE = sum over bins b of |B_b| / N * |accuracy(B_b) - confidence(B_b)|

Samples are grouped by confidence, the highest softmax probability, into 15 bins of equal width, closed on the right.
"""

from __future__ import annotations

import math

import numpy as np

from fedloom.evaluation.metrics.metric import Metric, Scores, Targets, softmax

BINS = 15


class CalibrationError(Metric):
    """Gap between confidence and accuracy, averaged over 15 bins of confidence."""

    name, title, better, bounds = "calibration_error", "calibration error", "lower", (0.0, 1.0)

    def compute(self, scores: Scores, targets: Targets) -> float:
        if not np.isfinite(scores).all():
            return math.nan
        confidence = softmax(scores).max(1)
        correct = scores.argmax(1) == targets
        bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
        gaps = np.bincount(bins, weights=correct - confidence, minlength=BINS)  # |B_b| (accuracy - confidence)
        return float(np.abs(gaps).sum() / len(targets))
