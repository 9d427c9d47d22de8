"""A tuning in the terminal: one progress bar for all trials, and a table of what was chosen."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from fedloom.evaluation.metrics import find_metric
from fedloom.report.progress import Bar, shows_progress
from fedloom.report.sheet import Sheet, SheetEntry
from fedloom.studies.tune.carry_out import Observer
from fedloom.studies.tune.chosen import ChosenSettings
from fedloom.studies.tune.halving import generations, rounds_of
from fedloom.studies.tune.plan import Planned
from fedloom.studies.tune.pool import Work, processes
from fedloom.studies.tune.search import Job, Outcome
from fedloom.studies.tune.study import Study


class TuningBar(Bar, Observer):
    """Progress of all trials of all methods."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "tuning")
        self._total = 1
        self._names: list[str] = []  # of the methods
        self._rounds: dict[tuple[int, int], int] = {}  # rounds of every trial so far
        self._ended: set[tuple[int, int]] = set()
        self._last_line = time.monotonic()  # the line of the start is the first

    def started(self, planned: Planned) -> None:
        self._names = [space.row for space in planned.spaces]
        names, at_once = ", ".join(self._names), processes(planned.base)
        self.note(
            f"tuning {names} on {planned.base.data.name} ({planned.base.split}, {planned.base.clients} clients): "
            f"{planned.budget}, {at_once} at a time, selected on {planned.samples} validation samples; into {planned.root}"
        )
        self._total = planned.rounds or len(planned.spaces) * rounds_of(generations(16), planned.marks)

    def round_ended(self, work: Work, line: dict[str, Any]) -> None:
        self._rounds[work.method, work.job.trial.number] = line["round"]
        self._clock.reach(self._share())
        self._show(self._names[work.method])

    def outcome(self, planned: Planned, method: int, job: Job, outcome: Outcome, known: bool) -> None:
        place = (method, job.trial.number)
        self._rounds[place] = outcome.done
        if known:
            self._clock.skip(self._share())
        if outcome.round == planned.marks[-1] or outcome.value is None:
            self._ended.add(place)
        self._show(planned.spaces[method].row)
        if not known:
            value = "diverged" if outcome.value is None else planned.metric.text(outcome.value)
            self._log(
                f"{planned.spaces[method].row}, trial {job.trial.number}, round {outcome.round}: validation {value}; "
                f"{sum(self._rounds.values())} of {self._total} rounds"
            )

    def _share(self) -> float:
        return min(sum(self._rounds.values()) / self._total, 1.0)

    def _show(self, name: str) -> None:
        text = f"tuning: {len(self._rounds)} trials, now {name}"
        self._progress.update(self._task, completed=self._share(), description=text, left=self._clock.left())


@contextmanager
def watching_trials(progress: bool | None, observer: Observer | None) -> Iterator[Observer | None]:
    """The observer of a tuning in Python: its own, or else a bar. None: in a terminal or a notebook."""
    console = Console(stderr=True, emoji=False)
    if observer is not None or not (shows_progress(console) if progress is None else progress):
        yield observer
        return
    with TuningBar(console) as shown:
        yield shown


def tuning_sheet(study: Study) -> Sheet:
    """One row per method: what was chosen, its value, and what the search took."""
    tuned = study.tuned
    metric = find_metric(tuned.metric)
    names = ("method", "chosen", "validation", "untuned", "trials", "stopped", "diverged", "rounds", "seconds")
    rows = [
        [
            SheetEntry(chosen.method),
            SheetEntry(_values(chosen)),
            SheetEntry(metric.text(chosen.value)),
            SheetEntry(metric.text(chosen.default_value)),
            *(
                SheetEntry(str(number))
                for number in (chosen.trials, chosen.stopped_early, chosen.diverged, chosen.rounds)
            ),
            SheetEntry(f"{chosen.seconds:.1f}"),
        ]
        for chosen in tuned.methods
    ]
    title = f"{metric.heading} on {tuned.validation_samples} validation samples; {tuned.budget}"
    return Sheet(title, [(name,) for name in names], rows, text_columns=2)


def _values(chosen: ChosenSettings) -> str:
    if chosen.sum is None:
        return "every trial diverged"
    return ", ".join(f"{name}={value}" for name, value in chosen.tuned.items()) or "nothing is tuned"


def next_command(study: Study) -> str:
    """What to type next: the choices on seeds that tuning did not see."""
    return f"fedloom compare --tuned {shlex.quote(str(study.root))} --seeds 5"
