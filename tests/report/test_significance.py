"""Which methods of a table are not significantly worse than the best: paired over seeds, corrected by Holm."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest
from scipy import stats

from fedloom.evaluation.metrics import METRICS
from fedloom.report.significance import confidence_interval, holm, note, paired, rank


def by_seed(values: list[float]) -> dict[Hashable, float]:
    return dict(enumerate(values))


BEST = [0.90, 0.91, 0.89, 0.92, 0.90]
# one comparison alone would be significant, but not as one of three
NEARLY = [0.883, 0.905, 0.886, 0.905, 0.896]
CLOSE = [0.91, 0.89, 0.90, 0.90, 0.91]
FAR = [0.70, 0.72, 0.69, 0.71, 0.70]


def test_p_values_are_corrected_by_holm() -> None:
    corrected = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.6})
    assert corrected == {
        "a": pytest.approx(0.04),
        "c": pytest.approx(0.09),
        "b": pytest.approx(0.09),
        "d": pytest.approx(0.6),
    }
    assert holm({"a": 0.7, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_bold_is_the_best_and_every_method_that_is_not_significantly_worse() -> None:
    samples = {"best": by_seed(BEST), "nearly": by_seed(NEARLY), "close": by_seed(CLOSE), "far": by_seed(FAR)}
    ranking = rank(samples, "higher")
    assert ranking is not None and ranking.best == "best"
    alone = {name: float(stats.ttest_rel(samples_of, BEST).pvalue) for name, samples_of in _others().items()}
    assert alone["nearly"] < 0.05 < 2 * alone["nearly"] and alone["far"] < 0.001 and alone["close"] > 0.3
    assert ranking.rivals["nearly"].p == pytest.approx(2 * alone["nearly"])  # the second smallest of three
    assert ranking.bold == {"best", "nearly", "close"}
    pair = rank({"best": by_seed(BEST), "nearly": by_seed(NEARLY)}, "higher")
    assert pair is not None and pair.bold == {"best"}  # one comparison needs no correction
    said = note(ranking, METRICS["accuracy"], str.upper)
    assert "Against BEST, points of global accuracy" in said and "corrected for 3 comparisons (Holm)" in said
    assert f"FAR {100 * (np.mean(FAR) - np.mean(BEST)):+.1f} (p < 0.001)" in said


def _others() -> dict[str, list[float]]:
    return {"nearly": NEARLY, "close": CLOSE, "far": FAR}


def test_intervals_are_those_of_students_t() -> None:
    low, high = confidence_interval(BEST) or (0.0, 0.0)
    expected = stats.t.interval(0.95, len(BEST) - 1, np.mean(BEST), stats.sem(BEST))
    assert (low, high) == pytest.approx(expected)
    assert confidence_interval(BEST[:2]) is None
    ranking = rank({"best": by_seed(BEST), "far": by_seed(FAR)}, "higher")
    assert ranking is not None and ranking.rivals["far"].interval == pytest.approx(
        stats.ttest_rel(FAR, BEST).confidence_interval(0.95)
    )


def test_of_a_loss_the_lowest_is_the_best() -> None:
    ranking = rank({"low": by_seed(FAR), "high": by_seed(BEST)}, "lower")
    assert ranking is not None and ranking.best == "low" and ranking.bold == {"low"}


def test_with_too_few_seeds_nothing_is_bold_and_a_sentence_says_so() -> None:
    ranking = rank({"a": {0: 0.9, 1: 0.8}, "b": {0: 0.1, 1: 0.2}}, "higher")
    assert ranking is not None and ranking.bold == frozenset()
    assert note(ranking, METRICS["accuracy"]) == (
        "No significance test: a paired one needs 3 seeds or more (--seeds 3), so nothing is bold."
    )
    assert rank({"a": {0: 0.9}}, "higher") is None


def test_methods_that_cannot_be_tested_are_not_bold_but_equal_ones_are() -> None:
    shifted = [value - 0.1 for value in BEST]
    assert paired(shifted, BEST) is None
    samples = {
        "a": by_seed(BEST),
        "same": by_seed(BEST),
        "steady": by_seed(shifted),
        "once": {0: 0.9},
        "none": {9: 0.5},
    }
    samples["undefined"] = {**by_seed(BEST), 4: float("nan")}
    ranking = rank(samples, "higher")
    assert ranking is not None and ranking.bold == {"a", "same"} and "undefined" not in ranking.rivals
    said = note(ranking, METRICS["accuracy"])
    assert "same +0.0 (equal on every seed)" in said
    assert "steady -10.0 (no test, differences do not vary)" in said and "once" in said and "none" not in said
