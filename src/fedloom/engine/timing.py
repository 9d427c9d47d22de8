"""Where the time goes: the phases of a round as the main process sees them, and the times that tasks report.

    compute        clients' training, queries, the server's own training: forward, backward, optimizer steps, parts
    data           preparing batches: shuffling, gathering, augmenting, normalizing, shifts of a split
    communication  copies to and from the buffers, pipes, clients' state, and workers that wait for the slowest one
    aggregation    checking and aggregating uploads, and the parts' hooks at the server
    other          the rest of a round

Workers run in parallel. If L workers spend T seconds on tasks with c seconds of computation and d of data preparation in
total, c / L count as compute, d / L as data, and the rest of T as communication. Times never enter a digest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, TypeVar

ROUND = ("compute", "data", "communication", "aggregation", "other")  # they sum to a round's `seconds`
PHASES = (*ROUND[:-1], "evaluation", "checkpoint", "other")
T = TypeVar("T")
OBSERVERS = "observers"  # callbacks that inspect a round: not part of its time


class RoundClock:
    """Every moment of a round belongs to one phase: the innermost open one, or `other`."""

    def __init__(self) -> None:
        self._phase, self._since = "other", perf_counter()
        self._spent = dict.fromkeys((*ROUND, OBSERVERS), 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        outer = self._enter(name)
        try:
            yield
        finally:
            self._enter(outer)

    def worked(self, reports: Sequence[Mapping[str, Any] | None], seconds: float, workers: int) -> None:
        """Move time of tasks from communication, where it was counted, to compute and data, as their reports say."""
        present = [report for report in reports if report]
        whole = workers * seconds
        data = min(sum(_number(report.get("data_seconds")) for report in present), whole)
        compute = min(sum(_computed(report) for report in present), whole - data)
        self._spent["compute"] += compute / workers
        self._spent["data"] += data / workers
        self._spent["communication"] -= (compute + data) / workers

    def read(self) -> dict[str, float]:
        """Seconds by phase since the clock was made; they sum to the elapsed time without observers."""
        self._enter(self._phase)
        return {name: max(self._spent[name], 0.0) for name in ROUND}

    def _enter(self, name: str) -> str:
        now, outer = perf_counter(), self._phase
        self._spent[outer] += now - self._since
        self._phase, self._since = name, now
        return outer


class TaskClock:
    """The times of one task on a worker: copying in and out, preparing batches, and everything else."""

    def __init__(self) -> None:
        self._began = self._from = self._until = perf_counter()
        self._prepared = Preparing.seconds

    def received(self) -> None:
        self._from = perf_counter()

    def worked(self) -> None:
        self._until = perf_counter()

    def report(self) -> dict[str, float]:
        """The times to add to the task's report."""
        data = Preparing.seconds - self._prepared
        return {
            "seconds": perf_counter() - self._began,
            "data_seconds": data,
            "compute_seconds": max(self._until - self._from - data, 0.0),
        }


class Preparing:
    """Total seconds that this process has spent on preparing batches."""

    seconds = 0.0

    @classmethod
    def since(cls, began: float) -> None:
        cls.seconds += perf_counter() - began


def preparing(batches: Iterator[T]) -> Iterator[T]:
    """The same batches; all the time that making them takes counts as data preparation."""
    while True:
        began, before = perf_counter(), Preparing.seconds
        try:
            batch = next(batches)
        except StopIteration:
            return
        finally:
            Preparing.seconds = before + perf_counter() - began  # replaces what was counted inside
        yield batch


def seconds_by(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds by phase over all rounds, from the lines of rounds.jsonl.

    compute + data + communication + aggregation + other sum to the rounds' `seconds`; evaluation and checkpoints are extra.
    """
    total = dict.fromkeys(PHASES, 0.0)
    for line in lines:
        seconds = line.get("phase_seconds") or {}
        for name in (*ROUND[:-1], "checkpoint"):
            total[name] += seconds.get(name, 0.0)
        total["other"] += line["seconds"] - sum(seconds.get(name, 0.0) for name in ROUND[:-1])
        total["evaluation"] += line.get("evaluation_seconds", 0.0)
    return {name: round(max(seconds, 0.0), 3) for name, seconds in total.items()}


def _computed(report: Mapping[str, Any]) -> float:
    """A node reports only its total time."""
    return _number(report.get("compute_seconds", report.get("seconds")))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) and value > 0 else 0.0
