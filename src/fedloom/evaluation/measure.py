"""The metrics of a recipe, of some samples: accuracy from hits, all others from scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fedloom.data import LabeledSamples
from fedloom.engine.client.replica import Replica
from fedloom.evaluation.metrics import compute
from fedloom.evaluation.metrics.accuracy import Accuracy
from fedloom.evaluation.metrics.metric import Better

Values = dict[str, float | None]  # by metric; None where it is undefined
Column = list[float | None]  # one value per client, None where it has no samples or the metric is undefined


def measure(metrics: Sequence[str], hits: Tensor, scores: Tensor, targets: Tensor) -> Values:
    """`scores` may be empty where accuracy is the only metric. All are None without samples."""
    if not len(hits):
        return dict.fromkeys(metrics)
    others = [name for name in metrics if name != "accuracy"]
    values = {name: defined(value) for name, value in compute(others, scores, targets).items()} if others else {}
    accuracy = Accuracy.of_counts(int(hits.sum()), len(hits))
    return {name: accuracy if name == "accuracy" else values[name] for name in metrics}


def evaluate_samples(
    replica: Replica, samples: LabeledSamples, borrowed: bool = False, counts: Tensor | None = None
) -> tuple[int, Values]:
    """The number of correct samples, and the recipe's metrics beyond accuracy. Arguments as of `Replica.hits`."""
    if not replica.recipe.needs_scores:
        return int(replica.hits(samples, borrowed, counts).sum()), {}
    scores = replica.scores(samples, borrowed, counts)
    hits = scores.argmax(1) == samples.y
    others = [name for name in replica.recipe.metrics if name != "accuracy"]
    return int(hits.sum()), measure(others, hits, scores, samples.y)


def defined(value: float | None) -> float | None:
    """None for NaN, which JSON cannot hold."""
    return None if value is None or math.isnan(value) else value


def summarize(values: Sequence[float | None], better: Better = "higher", undefined: int = 0) -> dict[str, float | int]:
    """Mean, population standard deviation, quartiles and worst over the clients that have a value.

    `undefined`: number of clients that have samples but no value, which is added where there are any.
    """
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    left_out = {"undefined": undefined} if undefined else {}
    if not len(known):
        return {"clients": 0, **left_out}
    q1, median, q3 = np.percentile(known, [25, 50, 75])
    return {
        "mean": float(known.mean()),
        "std": float(known.std()),
        "worst": float(known.min() if better == "higher" else known.max()),
        "q1": float(q1),
        "median": float(median),
        "q3": float(q3),
        "clients": len(known),
        **left_out,
    }


def count_undefined(values: Sequence[float | None], tested: Sequence[int | None] | None) -> int:
    """The number of clients with test samples for which a metric is undefined; `tested`: test samples per client."""
    return sum(value is None and bool(count) for value, count in zip(values, tested or (), strict=False))
