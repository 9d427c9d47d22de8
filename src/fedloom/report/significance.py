"""Whether a difference between methods is significant: a paired test over seeds, corrected for the number of comparisons.

Runs of one seed share the split, the cohorts and the initial weights, so methods are compared seed by seed: each with the one
of the best mean, by a two-sided paired t-test. Holm's correction keeps the chance of any false difference in a table below
the level. Wilcoxon's test cannot reach p < 0.05 with fewer than six seeds.

Bold in every table is the best mean and each one that is not significantly worse. What cannot be tested is not bold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Generic, TypeVar

from fedloom.evaluation.metrics import Metric

MIN_SEEDS = 3
LEVEL = 0.05
RULE = f"Bold: the best, and what is not significantly worse at {100 * LEVEL:g} %."
FEW = 5  # seeds below which only large differences are significant
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Rival:
    """One method beside the best, on the seeds that both have."""

    seeds: int
    difference: float  # of means; NaN without common seeds
    p: float | None  # corrected; None: no test
    equal: bool  # on every seed
    worse: bool  # in the mean
    interval: tuple[float, float] | None = None  # of the difference, at 95 %, not corrected; None: too few seeds

    @property
    def close(self) -> bool:
        """Whether it was tested and is not significantly worse."""
        return self.equal if self.p is None else self.p >= LEVEL or not self.worse


@dataclass(frozen=True)
class Ranking(Generic[Key]):
    """All methods beside the one of the best mean."""

    best: Key
    rivals: Mapping[Key, Rival]

    @property
    def tested(self) -> bool:
        return any(rival.p is not None or (rival.equal and rival.seeds >= MIN_SEEDS) for rival in self.rivals.values())

    @property
    def bold(self) -> frozenset[Key]:
        """None if nothing could be tested."""
        if not self.tested:
            return frozenset()
        enough = {key for key, rival in self.rivals.items() if rival.seeds >= MIN_SEEDS and rival.close}
        return frozenset({self.best, *enough})


def rank(samples: Mapping[Key, Mapping[Hashable, float]], better: str) -> Ranking[Key] | None:
    """`samples` maps method to seed to value, `better` is "higher" or "lower".

    Methods without values or with undefined ones are left out. None if fewer than two methods are left.
    """
    known = {
        key: by_seed
        for key, by_seed in samples.items()
        if by_seed and not any(math.isnan(value) for value in by_seed.values())
    }
    if len(known) < 2:
        return None
    sign = 1 if better == "higher" else -1
    best = max(known, key=lambda key: sign * fmean(known[key].values()))
    rivals = {key: _rival(by_seed, known[best], sign) for key, by_seed in known.items() if key != best}
    corrected = holm({key: rival.p for key, rival in rivals.items() if rival.p is not None})
    return Ranking(best, {key: replace(rival, p=corrected.get(key)) for key, rival in rivals.items()})


def _rival(by_seed: Mapping[Hashable, float], best: Mapping[Hashable, float], sign: int) -> Rival:
    both = [seed for seed in by_seed if seed in best]
    if not both:
        return Rival(0, math.nan, None, equal=False, worse=False)
    ours, theirs = [by_seed[seed] for seed in both], [best[seed] for seed in both]
    difference = fmean(ours) - fmean(theirs)
    each = [a - b for a, b in zip(ours, theirs, strict=True)]
    return Rival(
        len(both), difference, paired(ours, theirs), ours == theirs, sign * difference < 0, confidence_interval(each)
    )


def paired(values: Sequence[float], others: Sequence[float]) -> float | None:
    """The p-value; None if there are too few pairs or all differences are equal."""
    differences = [round(a - b, 12) for a, b in zip(values, others, strict=True)]
    if len(differences) < MIN_SEEDS or len(set(differences)) == 1:
        return None
    from scipy.special import stdtr  # slow to import; scipy.stats takes four times as long

    error = stdev(differences) / math.sqrt(len(differences))
    return float(2 * stdtr(len(differences) - 1, -abs(fmean(differences)) / error))


def confidence_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Of the mean, by Student's t; None if there are too few values."""
    if len(values) < MIN_SEEDS:
        return None
    from scipy.special import stdtrit  # slow to import

    half = float(stdtrit(len(values) - 1, 1 - LEVEL / 2)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's correction: the smallest p-value times their number, the next one times one fewer, and none below the last."""
    corrected, largest = {}, 0.0
    for place, key in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[key]))
        corrected[key] = largest
    return corrected


def note(ranking: Ranking[Key] | None, metric: Metric, name: Callable[[Key], str] = str) -> str:
    """Every method compared with the best one, as text."""
    if ranking is None:
        return ""
    if max((rival.seeds for rival in ranking.rivals.values()), default=0) < MIN_SEEDS:
        few = f"a paired one needs {MIN_SEEDS} seeds or more (--seeds {MIN_SEEDS})"
        return f"No significance test: {few}, so nothing is bold."
    texts = [f"{name(key)} {_compared(rival, metric)}" for key, rival in ranking.rivals.items() if rival.seeds]
    counts = sorted({rival.seeds for rival in ranking.rivals.values() if rival.seeds})
    over = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    tested = sum(rival.p is not None for rival in ranking.rivals.values())
    correction = f"p corrected for {tested} comparisons (Holm)" if tested > 1 else "one comparison"
    unit = "points of global" if metric.format == "percent" else "global"
    test = f"Paired t-test over {over} seeds, two-sided, {correction}."
    rule = f" {RULE}" if ranking.tested else " Nothing is bold, since no test was possible."
    if ranking.tested and counts[0] < FEW:
        rule += f" With {counts[0]} seeds only large and steady differences are significant."
    return f"Against {name(ranking.best)}, {unit} {metric.title}: {'; '.join(texts)}. {test}{rule}"


def _compared(rival: Rival, metric: Metric) -> str:
    gap = f"{100 * rival.difference:+.1f}" if metric.format == "percent" else f"{rival.difference:+.3f}"
    if rival.p is not None:
        return f"{gap} ({_p(rival.p)})"
    if rival.equal:
        return f"{gap} (equal on every seed)"
    return f"{gap} (no test, {'too few seeds' if rival.seeds < MIN_SEEDS else 'differences do not vary'})"


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.1 else f"p = {p:.2f}"
