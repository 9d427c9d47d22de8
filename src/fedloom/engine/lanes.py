"""Where clients run: processes with one compute thread each, forked from this one.

A forked lane inherits the net, the method and the mapped data as they are, so nothing is serialised, parts defined in
a script or notebook need no import, and a lane starts in milliseconds. Jobs and reports are short JSON texts in a
pipe; tensors lie on the board. A lane that dies is replaced and its job is run again; a lane whose main process dies
ends itself.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedloom.engine.board import Board
from fedloom.engine.clock import JobClock
from fedloom.engine.samples import held_back
from fedloom.engine.worker import Worker
from fedloom.errors import CodeFailed, FedloomError

Report = dict[str, Any]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names of malloc.h
TRIES = 3  # a job that killed this many lanes is given up


@dataclass(frozen=True)
class Job:
    """One thing to do for a lane. `prepare` puts what it needs on the board and is called again for every try."""

    kind: str
    arguments: dict[str, Any]
    cost: int = 1
    prepare: Callable[[int], None] | None = None  # gets the number of the lane


Perform = Callable[[Worker, Board, int, dict[str, Any]], Report]  # the last two: number of the lane, arguments
KINDS: dict[str, Perform] = {}  # further kinds of jobs, brought by modules that the engine does not know


def perform(worker: Worker, board: Board, lane: int, order: dict[str, Any]) -> Report:
    """What a lane does with a job."""
    kind, a = order["kind"], order["arguments"]
    if kind == "stack":
        from fedloom.engine.stack import Stack  # only where it is used: it brings vmap

        clock = JobClock()
        each = Stack(worker, a["clients"], a["round"], [board.views(row) for row in a["rows"]]).run()
        clock.worked()
        return {"each": each, **clock.report()}
    views = board.views(a.get("row", lane))
    if kind == "train":
        return worker.train(a["client"], a["round"], views)
    if kind == "act":
        return worker.act(a["client"], a["round"], views, a["part"], board.message)
    if kind == "refine":
        peers = [(board.up(row), samples, share) for row, samples, share in a["peers"]]
        return worker.refine(a["round"], board.refined(), a["part"], peers)
    if kind == "tell":
        return worker.tell(a["client"], a["round"], views, a["part"], board.findings(a["row"]))
    if kind == "test":
        worker.receive(board.down, None)
        begin, end, which = a["begin"], a["end"], a["set"]
        if which == "validation":
            pictures = held_back(worker.experiment)[begin:end]
        else:
            holding = worker.experiment.at(a["round"])
            pictures = (holding.pooled if which == "test" else holding.clean)(begin, end)
        board.hits_of[which][begin:end] = worker.correct(pictures, borrowed=True)
        return {}
    if kind == "client":
        return worker.test_client(a["client"], a["round"], views, a["personal"])
    if kind == "tune":
        return worker.tune(a["client"], views, a["regions"], a["epochs"], a["lr"], a["loss"], a["unseen"], a["first"])
    if kind in KINDS:
        return KINDS[kind](worker, board, lane, a)
    raise FedloomError(f"a lane was asked for {kind!r}, which it does not know")


class Lanes:
    """A fixed number of lanes over one worker and board; use as a context."""

    def __init__(self, worker: Worker, board: Board, count: int) -> None:
        self.worker, self.board, self.count = worker, board, count
        self.inline = worker.device != "cpu"  # a process on an accelerator does not survive a fork
        self._context = multiprocessing.get_context("fork")
        self._processes: list[BaseProcess | None] = [None] * count
        self._pipes: list[Connection | None] = [None] * count
        self.deaths = 0

    def __enter__(self) -> Lanes:
        self._alive = os.pipe()
        if not self.inline:
            for lane in range(self.count):
                self._start(lane)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, jobs: Sequence[Job], done: Callable[[int], None] | None = None) -> list[Report | None]:
        """Do all jobs, the longest first; reports come back in the order of the jobs, None for one that was given up."""
        reports: list[Report | None] = [None] * len(jobs)
        order = sorted(range(len(jobs)), key=lambda i: -jobs[i].cost)
        if self.inline:
            for i in order:
                reports[i] = self._inline(jobs[i])
                if done:
                    done(i)
            return reports
        waiting, tries = deque(order), [0] * len(jobs)
        busy: dict[Connection, tuple[int, int]] = {}
        idle = deque(range(self.count))
        try:
            while waiting or busy:
                while waiting and idle:
                    lane, i = idle.popleft(), waiting.popleft()
                    busy[self._send(lane, jobs[i])] = lane, i
                for pipe in wait(list(busy)):
                    assert isinstance(pipe, Connection)
                    lane, i = busy.pop(pipe)
                    report = self._receive(lane)
                    idle.append(lane)
                    if report is None:
                        tries[i] += 1
                        if tries[i] < TRIES:
                            waiting.appendleft(i)
                            continue
                    elif "error" in report:
                        raise failure(jobs[i], report["error"])
                    reports[i] = report
                    if done:
                        done(i)
        except BaseException:
            self.close()  # lanes may be in the middle of something; they are not to be used again
            raise
        return reports

    def close(self) -> None:
        """End all lanes now."""
        for lane, process in enumerate(self._processes):
            pipe = self._pipes[lane]
            if pipe is not None:
                pipe.close()
            if process is not None:
                process.kill()
                process.join()
        self._processes, self._pipes = [None] * self.count, [None] * self.count
        for end in self._alive:
            if end >= 0:
                os.close(end)
        self._alive = (-1, -1)

    def _start(self, lane: int) -> None:
        mine, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_live,
            args=(self.worker, self.board, lane, theirs, self._alive),
            daemon=True,
            name=f"fedloom-lane-{lane}",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads: see the module's first lines
            process.start()
        theirs.close()
        self._processes[lane], self._pipes[lane] = process, mine

    def _send(self, lane: int, job: Job) -> Connection:
        if job.prepare:
            job.prepare(lane)
        pipe = self._pipes[lane]
        assert pipe is not None
        with suppress(OSError):  # the lane is dead; reading from it says so
            pipe.send_bytes(json.dumps({"kind": job.kind, "arguments": job.arguments}).encode())
        return pipe

    def _receive(self, lane: int) -> Report | None:
        """The report, or None if the lane died; then another stands in its place."""
        pipe, process = self._pipes[lane], self._processes[lane]
        assert pipe is not None and process is not None
        try:
            report: Report = json.loads(pipe.recv_bytes())
            return report
        except (EOFError, OSError):
            pipe.close()
            process.kill()
            process.join()
            self.deaths += 1
            self._start(lane)
            return None

    def _inline(self, job: Job) -> Report:
        if job.prepare:
            job.prepare(0)
        return perform(self.worker, self.board, 0, {"kind": job.kind, "arguments": job.arguments})


def _live(worker: Worker, board: Board, lane: int, pipe: Connection, alive: tuple[int, int]) -> None:
    """A lane's life: one thread, job after job, until the main process closes the pipe or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the main process decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.close(alive[1])
    threading.Thread(target=end_with_main, args=(alive[0],), daemon=True).start()
    keep_freed_memory()
    torch.set_num_threads(1)
    while True:
        try:
            order = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        try:
            report = perform(worker, board, lane, order)
        except Exception as error:
            report = {"error": {"said": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}}
        try:
            pipe.send_bytes(json.dumps(report).encode())
        except OSError:
            os._exit(0)


def keep_freed_memory() -> None:
    """Let the C library keep what tensors free, instead of giving it back and clearing new pages at every step.

    Measured with LeNet at batch 50: 63 ms a step in place of 90, most of it page faults.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc: map only beyond 32 MB (its largest threshold), never trim
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def end_with_main(alive: int) -> None:
    os.read(alive, 1)  # nothing is ever written: this returns when the last writer, the main process, is gone
    os._exit(0)


def failure(job: Job, error: dict[str, str]) -> CodeFailed:
    where = f" for client {job.arguments['client']}" if "client" in job.arguments else ""
    if "clients" in job.arguments:
        where = f" for one of the clients {', '.join(map(str, job.arguments['clients']))}"
    return CodeFailed(f"{job.kind} failed{where}: {error['said']}", error["trace"])


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices(device: str) -> list[str]:
    """What a recipe's device means here: `cuda` is every one that can be seen, anything else is itself."""
    if device == "cuda" and torch.cuda.device_count() > 1:
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [device]


def check(lanes: int | str, device: str) -> None:
    """Refuse more lanes than cores: they only get in each other's way."""
    if device == "cpu" and isinstance(lanes, int) and lanes > cores() and not _oversubscribed():
        raise FedloomError(
            f"lanes: must be at most {cores()}, the cores of this machine (got {lanes}): a lane is a process that keeps one "
            f"core busy, so more of them are only slower; auto takes all cores, and FEDLOOM_OVERSUBSCRIBE=1 in the "
            f"environment lifts this limit"
        )


def count(lanes: int | str, device: str) -> int:
    """How many lanes a recipe means on this machine: one written elsewhere may want more than there is room for."""
    if device != "cpu":
        return len(devices(device)) if isinstance(lanes, str) else lanes
    if isinstance(lanes, str):
        return cores()
    return lanes if _oversubscribed() else min(lanes, cores())


def _oversubscribed() -> bool:
    return os.environ.get("FEDLOOM_OVERSUBSCRIBE", "") not in ("", "0")
