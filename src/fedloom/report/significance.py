"""Whether a difference between methods is significant: a paired test over seeds.

Runs of one seed share the split, the cohorts and the initial weights, so methods are compared seed by seed. The test is the
two-sided paired t-test, not corrected for multiple comparisons. Wilcoxon's test cannot reach p < 0.05 with fewer than six
seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedloom.evaluation.metrics import Metric

MIN_SEEDS = 3


def paired(values: Sequence[float], others: Sequence[float]) -> float | None:
    """The p-value; None if there are too few pairs or all differences are equal."""
    differences = [round(a - b, 12) for a, b in zip(values, others, strict=True)]
    if len(differences) < MIN_SEEDS or len(set(differences)) == 1:
        return None
    from scipy.stats import ttest_rel  # slow to import

    return float(ttest_rel(values, others).pvalue)


def note(best: str, samples: Mapping[str, Mapping[int, float]], metric: Metric) -> str:
    """Every method compared with the best one, as text; `samples` maps method to seed to the metric."""
    if len(samples) < 2:
        return ""
    if max(len(by_seed) for by_seed in samples.values()) < MIN_SEEDS:
        return f"No significance test: a paired one needs {MIN_SEEDS} seeds or more (--seeds {MIN_SEEDS})."
    texts, seeds = [], set()
    for row, by_seed in samples.items():
        both = sorted(set(by_seed) & set(samples[best]))
        if row == best or not both:
            continue
        mine, theirs = [by_seed[seed] for seed in both], [samples[best][seed] for seed in both]
        gap = (sum(mine) - sum(theirs)) / len(both)
        difference = f"{100 * gap:+.1f}" if metric.format == "percent" else f"{gap:+.3f}"
        p = paired(mine, theirs)
        seeds.add(len(both))
        verdict = "no test, differences do not vary" if len(both) >= MIN_SEEDS else "no test, too few seeds"
        texts.append(f"{row} {difference} ({_p(p) if p is not None else verdict})")
    over = " to ".join(str(count) for count in sorted({min(seeds), max(seeds)})) if seeds else "0"
    test = f"Paired t-test over {over} seeds, two-sided, uncorrected."
    unit = "points of global" if metric.format == "percent" else "global"
    return f"Against {best}, {unit} {metric.title}: {'; '.join(texts)}. {test}"


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.1 else f"p = {p:.2f}"
