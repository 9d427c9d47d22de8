"""Our value beside a published one, and whether the paper's ordering holds.

Two of our values differ if they are farther apart than chance explains. With one seed that is twice the standard error of
accuracies on a test set of this size, joined with the deviation over seeds where the paper prints one; with several it is the
95 % interval of Welch's t over seeds. Within it there is no verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from fedloom.papers import PublishedCell

PERSONAL = ("own", "tuned")
DIVERGED = "diverged"  # how the failure of a diverged run begins
ERRORS = 2.0  # standard errors that a difference of two single runs must exceed


class Verdict(Enum):
    HOLDS = "holds"
    REVERSED = "reversed"
    NOISE = "within noise"
    UNKNOWN = "not run"


@dataclass(frozen=True)
class CellOutcome:
    """One published number and ours, in percent (seconds, if it measures time); one value per seed."""

    cell: PublishedCell
    values: tuple[float, ...] = ()
    test_samples: int = 0
    failure: str = ""  # such as "diverged in round 13"
    differs: tuple[str, ...] = ()  # where the run departs from the cell's recipe
    stated_seeds: int | None = None  # where only a mean over seeds is on record
    stated_deviation: float | None = None

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def seeds(self) -> int:
        return self.stated_seeds or len(self.values)

    @property
    def deviation(self) -> float | None:
        """Over seeds."""
        if self.stated_deviation is not None:
            return self.stated_deviation
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def diverged(self) -> bool:
        return self.failure.startswith(DIVERGED)

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.cell.value is None else self.mean - self.cell.value

    @property
    def error(self) -> float:
        """Standard error of one value: of the test set, and of seeds where the paper prints their deviation."""
        share = min(max((self.mean or 0.0) / 100, 0.0), 1.0)
        sampling = 100 * math.sqrt(share * (1 - share) / self.test_samples) if self.test_samples else 0.0
        return math.hypot(sampling, self.cell.seed_deviation or 0.0)


def noise(one: CellOutcome, other: CellOutcome) -> float:
    """The largest difference of our values that chance explains, in points."""
    sizes = [one.seeds, other.seeds]
    if min(sizes) < 2:
        return ERRORS * math.hypot(one.error, other.error)
    squares = [(item.deviation or 0.0) ** 2 / item.seeds for item in (one, other)]
    total = sum(squares)
    if total == 0:
        return ERRORS * math.hypot(one.error, other.error)
    from scipy.special import stdtrit  # slow to import

    freedom = total**2 / sum(s**2 / (n - 1) for s, n in zip(squares, sizes, strict=True))
    return float(stdtrit(freedom, 0.975)) * math.sqrt(total)


def compared(one: CellOutcome, other: CellOutcome, published: float | None = None) -> Verdict:
    """Whether ours are ordered as published. A cell that diverged is below every number.

    `published`: the published difference of one over the other, if it is not that of the cells.
    """
    gap = _gap(one.cell.value, other.cell.value) if published is None else published
    ours = _gap(_ranked(one), _ranked(other))
    if gap is None or ours is None or gap == 0:
        return Verdict.UNKNOWN
    if abs(ours) <= noise(one, other):
        return Verdict.NOISE
    return Verdict.HOLDS if (ours > 0) == (gap > 0) else Verdict.REVERSED


def _ranked(outcome: CellOutcome) -> float | None:
    """None for a run that failed for another reason than divergence: it says nothing about the method."""
    return -math.inf if outcome.diverged and outcome.mean is None else outcome.mean


def _gap(one: float | None, other: float | None) -> float | None:
    if one is None or other is None or one == other == -math.inf:
        return None
    return one - other


@dataclass(frozen=True)
class Ordering:
    """All pairs of cells that differ in one axis alone."""

    setting: str
    published: tuple[str, ...]  # labels, best first
    ours: tuple[str, ...]  # of those that ran
    holds: int
    reversed: int
    noise: int

    @property
    def text(self) -> str:
        pairs = self.holds + self.reversed + self.noise
        counts = f"{self.holds} of {pairs} pairs as published, {self.noise} within noise, {self.reversed} reversed"
        return (
            f"{self.setting or 'all'}: published {' > '.join(self.published)}; ours {' > '.join(self.ours)}; {counts}"
        )


def groups(outcomes: Iterable[CellOutcome], axis: str | None) -> dict[tuple[str, ...], list[CellOutcome]]:
    """Cells that share all labels but that of this axis."""
    made: dict[tuple[str, ...], list[CellOutcome]] = {}
    for outcome in outcomes:
        ranked = _axis(outcome.cell.labels, axis)
        if ranked is not None:
            others = [f"{name}={label}" for name, label in outcome.cell.labels.items() if name != ranked]
            # methods are ranked by one kind of accuracy: of the global model, or of clients' own ones
            family = str(outcome.cell.measure.kind in PERSONAL) if ranked.startswith("method") else ""
            made.setdefault((f"{outcome.cell.block} {family}", *others), []).append(outcome)
    return made


def _axis(labels: Mapping[str, str], axis: str | None) -> str | None:
    return next((name for name in labels if axis and (name == axis or name.startswith(f"{axis} ("))), None)


def orderings(outcomes: Sequence[CellOutcome], axis: str | None) -> list[Ordering]:
    """One for each setting in which at least two cells ran."""
    made = []
    for key, members in groups(outcomes, axis).items():
        ran = [item for item in members if _ranked(item) is not None and item.cell.value is not None]
        verdicts = [compared(a, b) for i, a in enumerate(ran) for b in ran[i + 1 :]]
        if all(verdict is Verdict.UNKNOWN for verdict in verdicts):
            continue
        label = str(_axis(ran[0].cell.labels, axis))
        made.append(
            Ordering(
                ", ".join(key[1:]),
                tuple(i.cell.labels[label] for i in sorted(ran, key=lambda i: -(i.cell.value or 0.0))),
                tuple(i.cell.labels[label] for i in sorted(ran, key=lambda i: -(_ranked(i) or 0.0))),
                verdicts.count(Verdict.HOLDS),
                verdicts.count(Verdict.REVERSED),
                verdicts.count(Verdict.NOISE),
            )
        )
    return made


def marks(outcomes: Sequence[CellOutcome], axis: str | None) -> dict[str, Verdict]:
    """By the cell's id: whether it is where the paper has it relative to the best published cell of its group."""
    made: dict[str, Verdict] = {}
    for members in groups(outcomes, axis).values():
        ran = [item for item in members if _ranked(item) is not None and item.cell.value is not None]
        if len(ran) < 2:
            continue
        best, *others = sorted(ran, key=lambda item: -(item.cell.value or 0.0))
        verdicts = {item.cell.id: compared(best, item) for item in others}
        made |= verdicts
        known = {verdict for verdict in verdicts.values() if verdict is not Verdict.UNKNOWN}
        if known:
            worst_first = (Verdict.REVERSED, Verdict.NOISE, Verdict.HOLDS)
            made[best.cell.id] = next(verdict for verdict in worst_first if verdict in known)
    return made
