"""A paper's claims against our numbers: holds, holds weaker, does not hold, not tested.

A claim is a list of pairs of cells, one above the other. It holds if no pair is reversed and ours are at least half as far
apart as published, on average over the pairs that noise does not hide; it holds weaker if they are nearer, if most pairs are
within noise, or if a minority is reversed; it does not hold if as many pairs are reversed as hold. Pairs within noise alone
give no verdict. A verdict that rests on single runs says so: noise is then that of the test set, not that of seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedloom.papers.schema import Check, Claim, agree
from fedloom.studies.reproduce.outcome import CellOutcome, Verdict, compared

ENOUGH = 0.5  # of the published difference


@dataclass(frozen=True)
class ClaimVerdict:
    claim: Claim
    verdict: str
    pairs: int
    holds: int
    reversed: int
    noise: int
    single: int = 0  # pairs of which at least one cell has one seed

    @property
    def text(self) -> str:
        """The verdict, and whether it rests on one seed."""
        if not self.holds + self.reversed or not self.single:
            return self.verdict
        return f"{self.verdict} ({'one seed' if self.single == self.pairs else f'{self.single} pairs of one seed'})"

    @property
    def counts(self) -> str:
        if not self.pairs:
            return ""
        return f"{self.holds} of {self.pairs} pairs hold, {self.noise} within noise, {self.reversed} reversed"


def judge(claim: Claim, outcomes: Mapping[str, Sequence[CellOutcome]]) -> ClaimVerdict:
    """`outcomes`: by table."""
    verdicts, shares, single = [], [], 0
    for check in claim.checks:
        for better, than in _pairs(check, outcomes.get(check.table, ())):
            verdict = compared(better, than, published=1.0)
            if verdict is Verdict.UNKNOWN:
                continue
            verdicts.append(verdict)
            single += min(better.seeds, than.seeds) < 2
            published = (better.cell.value or 0.0) - (than.cell.value or 0.0)
            if verdict is Verdict.HOLDS and published > 0 and better.mean is not None and than.mean is not None:
                shares.append((better.mean - than.mean) / published)
    holds, reverse, noise = (verdicts.count(v) for v in (Verdict.HOLDS, Verdict.REVERSED, Verdict.NOISE))
    return ClaimVerdict(claim, _word(holds, reverse, noise, shares), len(verdicts), holds, reverse, noise, single)


def _word(holds: int, reverse: int, noise: int, shares: Sequence[float]) -> str:
    if holds + reverse + noise == 0:
        return "not tested"
    if holds + reverse == 0:
        return "no verdict: within noise"
    if reverse >= holds:
        return "does not hold"
    near = bool(shares) and statistics.fmean(shares) < ENOUGH
    return "holds weaker" if reverse or noise > holds or near else "holds"


def _pairs(check: Check, outcomes: Sequence[CellOutcome]) -> Iterator[tuple[CellOutcome, CellOutcome]]:
    by_others: dict[tuple[object, ...], list[CellOutcome]] = {}
    for item in outcomes:
        if agree(item.cell.labels, check.than):
            by_others.setdefault(_others(item, check), []).append(item)
    for item in outcomes:
        labels = {**item.cell.labels, "protocol": item.cell.protocol or ""}
        if agree(labels, check.better) and agree(labels, check.where):
            for other in by_others.get(_others(item, check), ()):
                yield item, other


def _others(item: CellOutcome, check: Check) -> tuple[object, ...]:
    """Everything but the axes that the pair differs in."""
    apart = {*check.better, *check.than}
    return (item.cell.block, *(pair for pair in sorted(item.cell.labels.items()) if pair[0] not in apart))
