"""Where the seconds go: the phases of a round as the main process sees them, and what a job says of its own.

    compute        clients' training, second acts, surveys, the server's own training: forward, backward, steps, parts
    data           preparing batches: shuffling, gathering, augmenting, normalising, images that a split changes
    communication  copies to and from the board, pipes, clients' memory, and lanes that wait for the slowest one
    aggregation    checking uploads, combining them, and what parts do on the server
    other          the rest of a round

Lanes work side by side. A stretch of T seconds in which L lanes did jobs of c seconds of computing and d of data in all
is c / L of compute, d / L of data, and communication for the rest of T. Times are never part of a digest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, TypeVar

ROUND = ("compute", "data", "communication", "aggregation", "other")  # these make up a round's `seconds`
PHASES = (*ROUND[:-1], "evaluation", "checkpoint", "other")
T = TypeVar("T")
ASIDE = "aside"  # observers: no part of a round's time


class RoundClock:
    """Every moment of a round belongs to one phase: the innermost that is open, `other` outside of all."""

    def __init__(self) -> None:
        self._phase, self._since = "other", perf_counter()
        self._spent = dict.fromkeys((*ROUND, ASIDE), 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        outer = self._enter(name)
        try:
            yield
        finally:
            self._enter(outer)

    def worked(self, reports: Sequence[Mapping[str, Any] | None], seconds: float, lanes: int) -> None:
        """Jobs took these seconds of communication, as it seemed: give back what they computed and prepared meanwhile."""
        told = [report for report in reports if report]
        whole = lanes * seconds
        data = min(sum(_number(report.get("data_seconds")) for report in told), whole)
        compute = min(sum(_computed(report) for report in told), whole - data)
        self._spent["compute"] += compute / lanes
        self._spent["data"] += data / lanes
        self._spent["communication"] -= (compute + data) / lanes

    def read(self) -> dict[str, float]:
        """Seconds by phase since it was made; they sum to the time since then, observers left out."""
        self._enter(self._phase)
        return {name: max(self._spent[name], 0.0) for name in ROUND}

    def _enter(self, name: str) -> str:
        now, outer = perf_counter(), self._phase
        self._spent[outer] += now - self._since
        self._phase, self._since = name, now
        return outer


class JobClock:
    """The seconds of one job on a lane: copying in and out, preparing batches, and everything else."""

    def __init__(self) -> None:
        self._began = self._from = self._until = perf_counter()
        self._prepared = Preparing.seconds

    def received(self) -> None:
        self._from = perf_counter()

    def worked(self) -> None:
        self._until = perf_counter()

    def report(self) -> dict[str, float]:
        """What a job adds to its report, at its end."""
        data = Preparing.seconds - self._prepared
        return {
            "seconds": perf_counter() - self._began,
            "data_seconds": data,
            "compute_seconds": max(self._until - self._from - data, 0.0),
        }


class Preparing:
    """Seconds that this process has spent on preparing batches, whoever asked for them."""

    seconds = 0.0

    @classmethod
    def since(cls, began: float) -> None:
        cls.seconds += perf_counter() - began


def preparing(batches: Iterator[T]) -> Iterator[T]:
    """The same batches; the time that making them takes is one of data, however it is spent."""
    while True:
        began, before = perf_counter(), Preparing.seconds
        try:
            batch = next(batches)
        except StopIteration:
            return
        finally:
            Preparing.seconds = before + perf_counter() - began  # in place of what was noted inside
        yield batch


def seconds_by(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The phases of all rounds, from the lines of rounds.jsonl.

    compute + data + communication + aggregation + other are the rounds' `seconds`; tests and checkpoints come on top.
    """
    total = dict.fromkeys(PHASES, 0.0)
    for line in lines:
        told = line.get("phase_seconds") or {}
        for name in (*ROUND[:-1], "checkpoint"):
            total[name] += told.get(name, 0.0)
        total["other"] += line["seconds"] - sum(told.get(name, 0.0) for name in ROUND[:-1])
        total["evaluation"] += line.get("evaluation_seconds", 0.0)
    return {name: round(max(seconds, 0.0), 3) for name, seconds in total.items()}


def _computed(report: Mapping[str, Any]) -> float:
    """Of a node elsewhere only the whole is known."""
    return _number(report.get("compute_seconds", report.get("seconds")))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) and value > 0 else 0.0
