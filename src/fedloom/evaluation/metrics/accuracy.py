"""Accuracy: the share of samples whose highest score is that of their class."""

from __future__ import annotations

from fedloom.evaluation.metrics.metric import Metric, Scores, Targets


class Accuracy(Metric):
    """Share of samples that are classified correctly.

    It is a ratio of counts, so workers and nodes report counts of correct samples instead of scores.
    """

    name, title = "accuracy", "accuracy"

    def compute(self, scores: Scores, targets: Targets) -> float:
        return self.of_counts(int((scores.argmax(1) == targets).sum()), len(targets))

    @staticmethod
    def of_counts(correct: int, total: int) -> float:
        return correct / total
