"""Area under the ROC curve, one class against the rest."""

from __future__ import annotations

import numpy as np

from fedloom.evaluation.metrics.metric import Metric, Scores, Targets, softmax


class Auroc(Metric):
    """Unweighted mean over classes of the area under the ROC curve of that class against the rest.

    Samples are ranked by the class's softmax probability. A class without positive or without negative samples has no
    curve and is left out; NaN if all are.
    """

    name, title = "auroc", "AUROC"

    def compute(self, scores: Scores, targets: Targets) -> float:
        from sklearn.metrics import roc_auc_score  # slow to import

        probabilities = softmax(scores)
        present = np.unique(targets)
        if len(present) < 2:
            return float("nan")
        return float(np.mean([roc_auc_score(targets == label, probabilities[:, label]) for label in present]))
