"""Accuracy: the share of samples whose highest score is that of their class."""

from __future__ import annotations

from fedloom.evaluation.metrics.metric import Metric, Scores, Targets


class Accuracy(Metric):
    """Share of samples that are classified correctly.

    It is a ratio of counts, so workers and nodes report counts of correct samples instead of scores. By class it is the
    recall of the class.
    """

    name, title, bounds, sample_mean = "accuracy", "accuracy", (0.0, 1.0), True

    def compute(self, scores: Scores, targets: Targets) -> float:
        return self.of_counts(int((scores.argmax(1) == targets).sum()), len(targets))

    @staticmethod
    def of_counts(correct: int, total: int) -> float:
        return correct / total
