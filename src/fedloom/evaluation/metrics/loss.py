"""Cross-entropy loss."""

from __future__ import annotations

import numpy as np

from fedloom.evaluation.metrics.metric import Metric, Scores, Targets, log_softmax


class Loss(Metric):
    """Mean negative log-likelihood of the targets under the softmax of the scores, in nats."""

    name, title, better, format = "loss", "cross-entropy loss", "lower", "number"

    def compute(self, scores: Scores, targets: Targets) -> float:
        return float(-log_softmax(scores)[np.arange(len(targets)), targets].mean())
