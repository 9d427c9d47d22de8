"""Cross-entropy loss."""

from __future__ import annotations

import math

import numpy as np

from fedloom.evaluation.metrics.metric import Metric, Scores, Targets, log_softmax


class Loss(Metric):
    """Mean negative log-likelihood of the targets under the softmax of the scores, in nats."""

    name, title, better, format = "loss", "cross-entropy loss", "lower", "number"
    bounds, sample_mean = (0.0, math.inf), True

    def compute(self, scores: Scores, targets: Targets) -> float:
        if not np.isfinite(scores).all():
            return math.nan
        likelihoods = log_softmax(scores)[np.arange(len(targets)), targets]
        return float(np.abs(likelihoods).mean())  # of a probability of 1, the logarithm is 0 or -0
