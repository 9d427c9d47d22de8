"""A paper's table from its own protocol, as one resumable job: plan, reuse, run, read.

Runs are those of `compare`: a finished one is read, an interrupted one resumed, one that fails reports why and does not stop
the others. A run that diverges is a result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedloom.engine.backends import select as where
from fedloom.engine.server.callback import Callbacks, RunCallback
from fedloom.errors import FedloomError
from fedloom.io.html import html_table
from fedloom.papers import PublishedCell, protocols
from fedloom.papers.apply import flat
from fedloom.paths import REPRODUCTIONS
from fedloom.recipe import NO_EFFECT_FIELDS
from fedloom.runs.folder import RunFolder
from fedloom.runs.run import Run
from fedloom.studies.cells import Cell, weighed
from fedloom.studies.compare import each_cell, tune_clients
from fedloom.studies.reproduce import read
from fedloom.studies.reproduce.choose import choose
from fedloom.studies.reproduce.data import Availability, availability, how_to_get
from fedloom.studies.reproduce.estimate import duration, job_seconds, sizes_of, training_seconds, tuning_seconds
from fedloom.studies.reproduce.jobs import Job, plan_jobs
from fedloom.studies.reproduce.outcome import CellOutcome
from fedloom.studies.reproduce.results import Results, StoredResult
from fedloom.studies.reproduce.reuse import FinishedRuns, complete

OUT = REPRODUCTIONS
DIVERGED = re.compile(r"round (\d+): .*training has diverged")


@dataclass(frozen=True)
class Plan:
    """What will be done, known before it starts."""

    target: str
    cells: tuple[PublishedCell, ...]
    jobs: tuple[Job, ...]  # of cells whose data can be had
    done: frozenset[str]  # digests of jobs that are complete
    seeds: tuple[int, ...]
    scale: float
    changed: Mapping[str, Any]  # recipe fields that were given
    out: Path
    without_data: Mapping[str, str]  # data set -> how to get it
    on_record: Mapping[str, StoredResult]  # by digest: results that stand for a run
    tuned_clients: int | None = None  # how many clients are fine-tuned; None: all

    @property
    def waiting(self) -> list[Job]:
        return [job for job in self.jobs if job.digest not in self.done]

    @property
    def seconds(self) -> float:
        return sum(job_seconds(job) for job in self.waiting)

    @property
    def departures(self) -> tuple[str, ...]:
        """How these runs depart from the paper's protocol; shown with every line."""
        shorter = (f"{self.scale:g} of the rounds",) if self.scale != 1 else ()
        given = (f"{name}={value}" for name, value in self.changed.items() if name not in NO_EFFECT_FIELDS)
        fewer = (f"{self.tuned_clients} clients fine-tuned",) if any(job.tuned_clients for job in self.jobs) else ()
        return (*shorter, *fewer, *given)

    def describe(self) -> str:
        """One sentence: how much there is to do, and how long it will take."""
        runnable = sum(not cell.not_runnable for cell in self.cells)
        text = f"{self.target}: {len(self.cells)} cells, {runnable} of them runnable, {len(self.jobs)} runs"
        if self.done:
            text += f", {len(self.done)} of them finished"
        if not self.waiting:
            return f"{text}; nothing is left to run"
        words = f"; {', '.join(self.departures)}" if self.departures else ""
        return f"{text}; about {duration(self.seconds)} on this machine{words}"


@dataclass(frozen=True, repr=False)
class Reproduction:
    """The outcome of every chosen cell of `fl.reproduce`, in the order of the paper; `fl.load` reads it again.

    >>> small = {"data": "digits", "model": "linear", "clients": 10, "epochs": 1}
    >>> fl.reproduce("fedbabu/table5", cells="s=10", methods="fedavg", scale=0.01, out="runs/again", **small)
    Reproduction('runs/again': fedbabu/table5, 7 of 7 cells)
    """

    plan: Plan
    outcomes: tuple[CellOutcome, ...]

    def __repr__(self) -> str:
        done = sum(bool(item.values) for item in self.outcomes)
        return f"Reproduction('{self.plan.out}': {self.plan.target}, {done} of {len(self.outcomes)} cells)"

    def _repr_html_(self) -> str:
        rows = [
            [
                f"{item.cell.place}: {item.cell.id}",
                _number(item.cell.value),
                item.failure or _number(item.mean),
                item.seeds,
            ]
            for item in self.outcomes
        ]
        return html_table(repr(self), ("cell", "published", "ours", "seeds"), rows, ", ".join(self.plan.departures))

    def table(self, paper: str, table: str) -> list[CellOutcome]:
        return [item for item in self.outcomes if (item.cell.paper, item.cell.table) == (paper, table)]

    @property
    def tables(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys((item.cell.paper, item.cell.table) for item in self.outcomes))

    @property
    def failures(self) -> list[CellOutcome]:
        return [item for item in self.outcomes if item.failure]


def plan(
    target: str,
    cells: str | None = None,
    methods: str | None = None,
    seeds: int = 1,
    scale: float = 1.0,
    sources: Sequence[str | Path] = (),
    out: str | Path = OUT,
    given: Mapping[str, Any] | None = None,
    as_published: bool = False,
    tuned_clients: int | None = None,
) -> Plan:
    """Choose cells, make and check their recipes, and find what is finished already. Nothing is written."""
    if seeds < 1:
        raise FedloomError(f"seeds: must be 1 or more (got {seeds})")
    if not 0 < scale <= 1:
        raise FedloomError(f"scale: must be above 0 and at most 1 (got {scale:g})")
    if tuned_clients is not None and tuned_clients < 1:
        raise FedloomError(f"tuned_clients: must be 1 or more (got {tuned_clients})")
    fields = {name: value for name, value in flat(given or {}).items() if name not in ("out", "name")}
    for name in ("method", "split", "seed"):
        if name in fields:
            raise FedloomError(f"set: {name} belongs to the cells of the table; choose them with --cells or --methods")
    chosen = choose(target, cells, methods)
    if as_published:
        chosen = [cell.as_published() for cell in chosen]
    numbers, finished, results = tuple(range(seeds)), FinishedRuns(sources), [Results(path) for path in sources]
    jobs: list[Job] = []
    done: set[str] = set()
    missing: dict[str, str] = {}
    on_record: dict[str, StoredResult] = {}
    moved: dict[str, Job] = {}  # runs that others begin with, where they really are
    for planned in plan_jobs(chosen, numbers, scale, fields, Path(out), tuned_clients):
        job = planned.beginning(moved[planned.begins_with]) if planned.begins_with in moved else planned
        reused = None if complete(job) else finished.find(job)
        if reused is not None:
            job = job.at(reused)
            moved[planned.digest] = job
        stored = None if complete(job) else _stored(job, results)
        if stored is not None:
            on_record[job.digest] = stored
        if stored is not None or complete(job):
            done.add(job.digest)
        elif (lacking := _lacking(job)) is not None:
            missing[lacking] = how_to_get(lacking, protocols()[job.protocol])
            continue
        jobs.append(job)
    if not jobs:
        _refuse(target, chosen, missing)
    return Plan(
        target,
        tuple(chosen),
        _weighed(jobs, done),
        frozenset(done),
        numbers,
        scale,
        fields,
        Path(out),
        missing,
        on_record,
        tuned_clients,
    )


def _stored(job: Job, results: Sequence[Results]) -> StoredResult | None:
    """A result on record that has the value of every cell of a run."""
    for known in results:
        result = known.find(job.cell.recipe)
        if result is not None and job.cells and all(result.value(cell) is not None for cell in job.cells):
            return result
    return None


def _lacking(job: Job) -> str | None:
    recipe = job.cell.recipe
    names = [recipe.data.name, *([recipe.data.public_from] if recipe.data.public_from else [])]
    return next((name for name in names if availability(name) is Availability.MISSING), None)


def _refuse(target: str, cells: Sequence[PublishedCell], missing: Mapping[str, str]) -> None:
    if missing:
        name, how = next(iter(missing.items()))
        raise FedloomError(f"{target}: the data set {name} is missing; {how}")
    raise FedloomError(f"{target}: none of these cells can be run: {cells[0].not_runnable}")


def _weighed(jobs: Sequence[Job], done: set[str]) -> tuple[Job, ...]:
    """Each with its share of the work, for one progress bar."""
    waiting = [job.digest not in done for job in jobs]
    training = [training_seconds(job) if left else 0.0 for job, left in zip(jobs, waiting, strict=True)]
    tuning = [tuning_seconds(job) if left else 0.0 for job, left in zip(jobs, waiting, strict=True)]
    cells = weighed([job.cell for job in jobs], training, tuning)
    return tuple(replace(job, cell=cell) for job, cell in zip(jobs, cells, strict=True))


def carry_out(plan: Plan, callbacks: Sequence[RunCallback] = ()) -> Reproduction:
    """Run what is left, then read every cell."""
    waiting, failures = {job.folder: job for job in plan.waiting}, dict[str, str]()
    callback = Callbacks(*callbacks)

    def tune(cell: Cell, run: Run) -> None:
        job = waiting[Path(str(cell.recipe.out))]
        if job.fine_tunings:
            tune_clients(run, job.fine_tunings, callback, job.tuned_clients)

    with where.session():
        for cell, _, _, failure in each_cell([job.cell for job in waiting.values()], tune, callback):
            if failure is not None:
                failures[waiting[Path(str(cell.recipe.out))].digest] = _reason(failure)
    behind: dict[tuple[str, str], list[Job]] = {}
    for job in plan.jobs:
        for published in job.cells:
            behind.setdefault(published.key, []).append(job)
    return Reproduction(plan, tuple(_outcome(cell, behind.get(cell.key, ()), plan, failures) for cell in plan.cells))


def _outcome(cell: PublishedCell, jobs: Sequence[Job], plan: Plan, failures: Mapping[str, str]) -> CellOutcome:
    """Our values of a cell, one per seed that is finished."""
    values: list[float] = []
    reasons: list[str] = []
    differs, samples = list(plan.departures), 0
    for job in jobs:
        if (stored := plan.on_record.get(job.digest)) is not None:
            value = stored.value(cell)
            values += [value] if value is not None else []
            differs += stored.differences(cell, job.cell.recipe)
            samples = sizes_of(job).test
            continue
        folder = RunFolder(job.folder)
        if job.digest in failures:
            reasons.append(failures[job.digest])
        elif complete(job):
            try:
                values.append(read.value(cell, job.cell.recipe, folder, job.tuned_clients))
                samples = read.test_samples(folder)
                if cell.measure.kind == "tuned" and job.tuned_clients is not None:
                    samples = samples * job.tuned_clients // job.cell.recipe.clients
            except (FedloomError, KeyError, TypeError, ValueError) as error:
                reasons.append(str(error))
    return CellOutcome(cell, tuple(values), samples, "; ".join(dict.fromkeys(reasons)), tuple(dict.fromkeys(differs)))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _reason(failure: str) -> str:
    diverged = DIVERGED.search(failure)
    return f"diverged in round {diverged.group(1)}" if diverged else failure.splitlines()[0]
