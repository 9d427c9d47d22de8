"""The search of one method, as a generator: it yields trials that may run at the same time, and receives their outcomes.

What it yields depends on earlier outcomes and on nothing else: not on time, on other methods, or on the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from fedloom.evaluation.metrics import Metric
from fedloom.studies.tune.halving import generations, kept
from fedloom.studies.tune.sampler import Sampler, all_points
from fedloom.studies.tune.space import Point


@dataclass(frozen=True)
class Outcome:
    """A trial after some round."""

    round: int
    value: float | None  # of the headline metric on validation samples; None: diverged
    error: float | None = None  # the standard error of the value, where it is known
    seconds: float = 0.0  # of all rounds so far, with evaluation
    diverged: str = ""  # such as "in round 13"
    done: int = 0  # rounds that were completed
    loss: float | None = None  # cross-entropy on the same samples, which decides between equal values


@dataclass
class Trial:
    number: int
    point: Point
    outcomes: list[Outcome] = field(default_factory=list)
    stopped: bool = False

    @property
    def last(self) -> Outcome:
        return self.outcomes[-1]

    @property
    def diverged(self) -> bool:
        return bool(self.outcomes) and self.last.value is None

    @property
    def finished(self) -> bool:
        return not self.stopped and not self.diverged

    def ended(self, last: int) -> bool:
        """Whether no more rounds of it will be run; `last`: the last round."""
        return bool(self.outcomes) and (self.stopped or self.diverged or self.last.round == last)

    @property
    def state(self) -> str:
        return "diverged" if self.diverged else "stopped early" if self.stopped else "finished"


@dataclass(frozen=True)
class Job:
    """Run a trial until a round."""

    trial: Trial
    until: int


Batch = Generator[list[Job], list[Outcome], list[Trial]]


def search(sampler: Sampler, marks: Sequence[int], metric: Metric, trials: Callable[[Outcome], int] | int) -> Batch:
    """`marks`: rounds after which trials are compared. `trials`: their number, or a function of the first outcome that
    gives it, for a budget of time."""
    every: list[Trial] = []
    start: Trial | None = None
    if not isinstance(trials, int):
        start = Trial(0, sampler.space.default)
        start.outcomes += yield [Job(start, marks[0])]
        trials = trials(start.last)
    grid = all_points(sampler.space, trials)
    for size in generations(trials) if grid is None else [len(grid)]:
        points = sampler.propose(size)
        if not points:
            break  # all settings were tried
        new = [Trial(len(every) + place, point) for place, point in enumerate(points)]
        if start is not None and not every:
            new[0] = start
        every += new
        yield from _generation(new, marks, metric)
        for trial in new:
            sampler.report(trial.number, trial.last.value, trial.last.round if trial.stopped else None)
    return every


def _generation(
    new: Sequence[Trial], marks: Sequence[int], metric: Metric
) -> Generator[list[Job], list[Outcome], None]:
    alive = list(new)
    for rung, mark in enumerate(marks):
        waiting = [trial for trial in alive if not trial.outcomes or trial.last.round < mark]
        outcomes = (yield [Job(trial, mark) for trial in waiting]) if waiting else []
        for trial, outcome in zip(waiting, outcomes, strict=True):
            trial.outcomes.append(outcome)
        alive = [trial for trial in alive if not trial.diverged]
        if mark == marks[-1]:
            return
        rivals = [trial for trial in alive if trial.number > 0]
        ahead = ranked(rivals, metric)[: kept(len(new), rung)]
        going = [trial for trial in alive if trial in ahead or trial.number == 0]
        for trial in alive:
            trial.stopped = trial not in going
        alive = going


def ranked(trials: Sequence[Trial], metric: Metric) -> list[Trial]:
    """Those with a value, the best first; of equals, the one with the smaller loss, then the earlier one.

    Models that have just begun to learn predict one class, so their accuracies are equal.
    """
    sign = -1 if metric.better == "higher" else 1

    def place(trial: Trial) -> tuple[float, float, int]:
        loss = trial.last.loss
        return sign * (trial.last.value or 0.0), math.inf if loss is None else loss, trial.number

    return sorted((trial for trial in trials if not trial.diverged), key=place)
