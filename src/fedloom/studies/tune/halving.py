"""How many trials run how long: generations of trials, and successive halving by rounds inside each.

All trials of a generation run for a quarter of the rounds, the better half of them for a half, and the better quarter to the
end. The first trial of all, the setting without tuning, runs to the end beside them: so the choice is never worse than that
setting. The numbers do not depend on results: every method takes the same number of trials and of rounds, unless trials
diverge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

SHARES = (4, 2, 1)  # rounds / share: where trials are compared
LATER = 4  # trials of every generation but the first
MOST = 1000  # trials that a budget gives a method
LEAST = 4  # trials of the first generation, if there are as many


def rungs(rounds: int, halving: bool) -> tuple[int, ...]:
    """The rounds after which trials are compared; the last is the last round."""
    if not halving:
        return (rounds,)
    return tuple(dict.fromkeys(math.ceil(rounds / share) for share in SHARES))


def generations(trials: int) -> list[int]:
    """Sizes: half of the trials first, to cover the ranges, then a few at a time, each from what is known by then."""
    first = min(trials, max(LEAST, math.ceil(trials / 2)))
    rest = trials - first
    return [first, *(min(LATER, rest - begin) for begin in range(0, rest, LATER))]


def kept(size: int, rung: int) -> int:
    """Number of trials of a generation of this size that go on after a rung (the first is 0)."""
    return math.ceil(size / float(2 ** (rung + 1)))


def rounds_of(sizes: Sequence[int], marks: Sequence[int]) -> int:
    """The rounds that trials in generations of these sizes take at most."""
    total = 0
    for number, size in enumerate(sizes):
        alive, before = size, 0
        for rung, mark in enumerate(marks):
            total += alive * (mark - before)
            alive, before = min(kept(size, rung) + (number == 0), alive), mark
    return total


def trials_within(rounds: float, marks: Sequence[int]) -> int:
    """The largest number of trials that take no more rounds; at least 1."""
    trials = 1
    while rounds_of(generations(trials + 1), marks) <= rounds and trials < MOST:
        trials += 1
    return trials
