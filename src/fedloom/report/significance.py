"""Whether a difference between methods is more than luck: a paired test over seeds.

Cells of one seed share clients, cohorts and first weights, so methods are compared seed by seed. The test is the paired t-test,
two-sided, not corrected for the number of comparisons; Wilcoxon's cannot fall below 0.05 with fewer than six seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FEWEST = 3  # seeds that a test needs


def paired(values: Sequence[float], others: Sequence[float]) -> float | None:
    """The p-value, or None where the test says nothing: too few pairs, or all differences the same."""
    differences = [round(a - b, 12) for a, b in zip(values, others, strict=True)]
    if len(differences) < FEWEST or len(set(differences)) == 1:
        return None
    from scipy.stats import ttest_rel  # a second or so to import, and few commands test anything

    return float(ttest_rel(values, others).pvalue)


def note(best: str, samples: Mapping[str, Mapping[int, float]]) -> str:
    """One sentence on every method against the best; `samples` maps method to seed to accuracy."""
    if len(samples) < 2:
        return ""
    if max(len(found) for found in samples.values()) < FEWEST:
        return f"No significance test: a paired one needs {FEWEST} seeds or more (--seeds {FEWEST})."
    told, seeds = [], set()
    for row, found in samples.items():
        both = sorted(set(found) & set(samples[best]))
        if row == best or not both:
            continue
        mine, theirs = [found[seed] for seed in both], [samples[best][seed] for seed in both]
        gap = 100 * (sum(mine) - sum(theirs)) / len(both)
        p = paired(mine, theirs)
        seeds.add(len(both))
        verdict = "no test, differences do not vary" if len(both) >= FEWEST else "no test, too few seeds"
        told.append(f"{row} {gap:+.1f} ({_p(p) if p is not None else verdict})")
    over = " to ".join(str(count) for count in sorted({min(seeds), max(seeds)})) if seeds else "0"
    test = f"Paired t-test over {over} seeds, two-sided, uncorrected."
    return f"Against {best}, points of global accuracy: {'; '.join(told)}. {test}"


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.1 else f"p = {p:.2f}"
