"""Run a planned tuning: all methods' searches at once, trials in a pool of processes, outcomes in the record."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from fedloom.engine.backends import select as where
from fedloom.errors import Interrupted
from fedloom.runs.folder import RunFolder
from fedloom.studies.tune.budget import DEFAULT_TRIALS
from fedloom.studies.tune.cautions import cautions
from fedloom.studies.tune.chosen import ChosenSettings, Tuned, write
from fedloom.studies.tune.halving import trials_within
from fedloom.studies.tune.plan import Planned
from fedloom.studies.tune.pool import Work, perform, processes
from fedloom.studies.tune.record import Record, refuse_other
from fedloom.studies.tune.sampler import Sampler
from fedloom.studies.tune.search import Batch, Job, Outcome, Trial, ranked, search
from fedloom.studies.tune.study import Study
from fedloom.studies.tune.trial_row import TrialRow


class Observer:
    """What watches a tuning. Override what you need."""

    def started(self, planned: Planned) -> None:
        """Before the first trial."""

    def round_ended(self, work: Work, line: dict[str, Any]) -> None:
        """A trial completed a round; `line` has round, train_loss and seconds."""

    def outcome(self, planned: Planned, method: int, job: Job, outcome: Outcome, known: bool) -> None:
        """A trial was evaluated after a round, or was evaluated in an earlier, interrupted tuning (`known`)."""


@dataclass
class _Searches:
    """The searches of all methods, each with the jobs that it waits for."""

    planned: Planned
    record: Record
    observer: Observer
    waiting: deque[Work] = field(default_factory=deque)
    done: dict[int, list[Trial]] = field(default_factory=dict)
    _running: dict[int, Batch] = field(default_factory=dict)
    _trials: dict[tuple[int, int], Trial] = field(default_factory=dict)  # that have not ended, by method and number
    _jobs: dict[int, list[Job]] = field(default_factory=dict)
    _outcomes: dict[int, list[Outcome | None]] = field(default_factory=dict)

    def begin(self) -> None:
        planned = self.planned
        for number, space in enumerate(planned.spaces):
            sampler = Sampler(space, planned.base.seed, planned.metric.better)
            trials = planned.trials(space)
            self._running[number] = search(
                sampler, planned.marks, planned.metric, self._by_time(number) if trials is None else trials
            )
            self._advance(number, None)

    def add(self, work: Work, outcome: Outcome) -> None:
        """An outcome of a trial that was waiting."""
        self.record.add(work.method, work.job, outcome)
        self.observer.outcome(self.planned, work.method, work.job, outcome, False)
        place = next(i for i, job in enumerate(self._jobs[work.method]) if job is work.job)
        outcomes = self._outcomes[work.method]
        outcomes[place] = outcome
        if None not in outcomes:
            self._advance(work.method, [known for known in outcomes if known is not None])

    def _advance(self, number: int, outcomes: list[Outcome] | None) -> None:
        """Give a search what it waits for, until it wants a trial that is not in the record."""
        while True:
            try:
                jobs = next(self._running[number]) if outcomes is None else self._running[number].send(outcomes)
            except StopIteration as stop:
                self.done[number] = stop.value
                self._remove_checkpoints(number)
                return
            self._remove_checkpoints(number)
            self._trials |= {(number, job.trial.number): job.trial for job in jobs}
            known = [self.record.outcome(number, job) for job in jobs]
            for job, outcome in zip(jobs, known, strict=True):
                if outcome is not None:
                    self.observer.outcome(self.planned, number, job, outcome, True)
            if None in known:
                break
            outcomes = [outcome for outcome in known if outcome is not None]
        self._jobs[number], self._outcomes[number] = jobs, known
        for job, outcome in zip(jobs, known, strict=True):
            if outcome is None:
                recipe = self.planned.recipe(number, job.trial.number, job.trial.point)
                self.waiting.append(Work(number, job, recipe))

    def _remove_checkpoints(self, number: int) -> None:
        """Trials that ended keep their logs and weights; clients' states of many trials would fill a disk."""
        last = self.planned.marks[-1]
        ended = [trial for (method, _), trial in self._trials.items() if method == number and trial.ended(last)]
        for trial in ended:
            del self._trials[number, trial.number]
            out = self.planned.recipe(number, trial.number, trial.point).out
            shutil.rmtree(RunFolder(str(out)).checkpoints, ignore_errors=True)

    def _by_time(self, number: int) -> Callable[[Outcome], int]:
        """The number of trials that fit into a method's share of the time, by the time of its first rounds."""

        def trials(first: Outcome) -> int:
            planned = self.planned
            assert planned.budget.seconds is not None
            if not first.done:  # it diverged in its first round, so nothing is known about the time of rounds
                return self.record.number(number, DEFAULT_TRIALS)
            share = planned.budget.seconds * processes(planned.base) / len(planned.spaces)
            rounds = share / max(first.seconds / first.done, 1e-6)
            return self.record.number(number, trials_within(rounds, planned.marks))

        return trials


def carry_out(planned: Planned, observer: Observer | None = None) -> Study:
    """Run or resume it, and write the choices."""
    observer = observer or Observer()
    refuse_other(planned.root, planned.asked)
    planned.root.mkdir(parents=True, exist_ok=True)
    with RunFolder(planned.root).held(), where.session():
        record = Record(planned.root, planned.asked)
        searches = _Searches(planned, record, observer)
        observer.started(planned)
        searches.begin()
        try:
            with closing(perform(searches.waiting, planned.base, observer.round_ended)) as outcomes:
                for work, outcome in outcomes:
                    searches.add(work, outcome)
        except (KeyboardInterrupt, Interrupted):
            raise Interrupted(
                f"stopped with {len(searches.done)} of {len(planned.spaces)} methods tuned ({record.trials} trials begun); "
                f"the same command resumes"
            ) from None
        study = _study(planned, [searches.done[number] for number in range(len(planned.spaces))])
        write(planned.root, study.tuned)
    return study


def _study(planned: Planned, trials: list[list[Trial]]) -> Study:
    chosen = tuple(_chosen(planned, number, each) for number, each in enumerate(trials))
    rows = [
        TrialRow(
            method=planned.spaces[number].row,
            trial=trial.number,
            values=trial.point,
            state=trial.state,
            rounds=trial.last.done,
            value=trial.last.value,
            seconds=trial.last.seconds,
            folder=str(planned.recipe(number, trial.number, trial.point).out),
        )
        for number, each in enumerate(trials)
        for trial in each
    ]
    base = planned.base
    tuned = Tuned(
        recipe=base.model_dump(mode="json", exclude={"method", "seed", "name", "out"}),
        metric=base.headline,
        seeds=(base.seed,),
        methods=chosen,
        budget=str(planned.budget),
        validation_samples=planned.samples,
        rungs=planned.marks,
    )
    return Study(planned.root, tuned, tuple(rows))


def _chosen(planned: Planned, number: int, trials: list[Trial]) -> ChosenSettings:
    space, metric = planned.spaces[number], planned.metric
    best = next((trial for trial in ranked(trials, metric) if trial.finished), None)
    settings = {} if best is None else space.chosen_settings(best.point)
    return ChosenSettings(
        method=space.row,
        sum=None if best is None else space.sum(best.point),
        settings={name: "null" if value is None else value for name, value in settings.items()},
        value=None if best is None else best.last.value,
        trials=len(trials),
        stopped_early=sum(trial.stopped for trial in trials),
        diverged=sum(trial.diverged for trial in trials),
        rounds=sum(trial.last.done for trial in trials),
        seconds=round(sum(trial.last.seconds for trial in trials), 3),
        warnings=tuple(cautions(space, trials, metric, planned.samples, planned.baselines[number])),
        tuned={} if best is None else best.point,
        ranges={name: str(values) for name, values in space.ranges.items()},
        default_value=trials[0].last.value,
        selected_on="clients' own models" if space.row in planned.own else "global model",
    )
