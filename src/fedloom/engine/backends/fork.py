"""Workers forked from this process, with one compute thread each.

A forked worker inherits the net, the method and the mapped data, so nothing is serialized, parts defined in a script or
notebook need no import, and a worker starts in milliseconds. Tasks and reports are short JSON texts in a pipe; tensors are
in the shared buffers. A worker that dies is replaced and its task is run again; a worker whose main process dies exits.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from fedloom.engine.backends.memory import keep_freed_memory
from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client.replica import Replica
from fedloom.engine.tasks import Assignment, Report, Task
from fedloom.errors import CodeFailed, FedloomError

TRIES = 3  # a task is given up after it has killed this many workers


class ForkBackend:
    """A fixed number of forked workers that share one set of buffers; use as a context manager."""

    def __init__(self, replica: Replica, buffers: SharedBuffers, count: int) -> None:
        self.replica, self.buffers, self.count = replica, buffers, count
        self.inline = replica.device != "cpu"  # an accelerator's driver does not survive a fork
        self._context = multiprocessing.get_context("fork")
        self._processes: list[BaseProcess | None] = [None] * count
        self._pipes: list[Connection | None] = [None] * count
        self.deaths = 0

    def __enter__(self) -> ForkBackend:
        self._alive = os.pipe()
        if not self.inline:
            for worker in range(self.count):
                self._start(worker)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, assignments: Sequence[Assignment], done: Callable[[int], None] | None = None) -> list[Report | None]:
        """Run all assignments, the longest first; reports in their order, None for one that was given up."""
        reports: list[Report | None] = [None] * len(assignments)
        order = sorted(range(len(assignments)), key=lambda i: -assignments[i].cost)
        if self.inline:
            for i in order:
                reports[i] = self._inline(assignments[i])
                if done:
                    done(i)
            return reports
        waiting, tries = deque(order), [0] * len(assignments)
        busy: dict[Connection, tuple[int, int]] = {}
        idle = deque(range(self.count))
        try:
            while waiting or busy:
                while waiting and idle:
                    worker, i = idle.popleft(), waiting.popleft()
                    busy[self._send(worker, assignments[i])] = worker, i
                for pipe in wait(list(busy)):
                    assert isinstance(pipe, Connection)
                    worker, i = busy.pop(pipe)
                    report = self._receive(worker)
                    idle.append(worker)
                    if report is None:
                        tries[i] += 1
                        if tries[i] < TRIES:
                            waiting.appendleft(i)
                            continue
                    elif "error" in report:
                        raise failure(assignments[i].task, report["error"])
                    reports[i] = report
                    if done:
                        done(i)
        except BaseException:
            self.close()  # workers may be in the middle of a task, so they cannot be used again
            raise
        return reports

    def close(self) -> None:
        """Kill all workers, then wait for them: each needs some milliseconds to return its memory."""
        for pipe in self._pipes:
            if pipe is not None:
                pipe.close()
        processes = [process for process in self._processes if process is not None]
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        self._processes, self._pipes = [None] * self.count, [None] * self.count
        for end in self._alive:
            if end >= 0:
                os.close(end)
        self._alive = (-1, -1)

    def _start(self, worker: int) -> None:
        mine, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve,
            args=(self.replica, self.buffers, worker, theirs, self._alive),
            daemon=True,
            name=f"fedloom-worker-{worker}",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about forking a process that has threads
            process.start()
        theirs.close()
        self._processes[worker], self._pipes[worker] = process, mine

    def _send(self, worker: int, assignment: Assignment) -> Connection:
        if assignment.prepare:
            assignment.prepare(worker)
        pipe = self._pipes[worker]
        assert pipe is not None
        with suppress(OSError):  # the worker is dead, which reading from it will show
            pipe.send_bytes(json.dumps(assignment.task.to_json()).encode())
        return pipe

    def _receive(self, worker: int) -> Report | None:
        """The report, or None if the worker died and was replaced."""
        pipe, process = self._pipes[worker], self._processes[worker]
        assert pipe is not None and process is not None
        try:
            report: Report = json.loads(pipe.recv_bytes())
            return report
        except (EOFError, OSError):
            pipe.close()
            process.kill()
            process.join()
            self.deaths += 1
            self._start(worker)
            return None

    def _inline(self, assignment: Assignment) -> Report:
        if assignment.prepare:
            assignment.prepare(0)
        return assignment.task.perform(self.replica, self.buffers, 0)


def _serve(replica: Replica, buffers: SharedBuffers, worker: int, pipe: Connection, alive: tuple[int, int]) -> None:
    """The main loop of a worker: one thread, task after task, until the main process closes the pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the main process handles it
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
            report = Task.from_json(order).perform(replica, buffers, worker)
        except Exception as error:
            report = {"error": {"message": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}}
        try:
            pipe.send_bytes(json.dumps(report).encode())
        except OSError:
            os._exit(0)


def forks() -> bool:
    """Whether workers are forked: on Linux. Windows has no fork, and on macOS not all of its libraries survive one.

    FEDLOOM_START=spawn in the environment starts fresh processes on Linux as well.
    """
    return os.environ.get("FEDLOOM_START", "fork" if sys.platform == "linux" else "spawn") == "fork"


def end_with_main(alive: int) -> None:
    os.read(alive, 1)  # nothing is ever written: this returns when the last writer, the main process, is dead
    os._exit(0)


def failure(task: Task, error: dict[str, str]) -> CodeFailed:
    return CodeFailed(f"{task} failed: {error['message']}", error["trace"])


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices(device: str) -> list[str]:
    """The devices that a recipe's `device` means here: `cuda` is every visible GPU, anything else is itself."""
    if device == "cuda" and torch.cuda.device_count() > 1:
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [device]


def check(workers: int | str, device: str) -> None:
    """Refuse more workers than cores: they would only slow each other down."""
    if device == "cpu" and isinstance(workers, int) and workers > cores() and not _oversubscribed():
        raise FedloomError(
            f"workers: must be at most {cores()}, the cores of this machine (got {workers}): a worker is a process that "
            f"keeps one core busy, so more of them are only slower; auto uses all cores, and FEDLOOM_OVERSUBSCRIBE=1 in "
            f"the environment lifts this limit"
        )


def count(workers: int | str, device: str) -> int:
    """The number of workers of a recipe on this machine, which may have fewer cores than the recipe asks for."""
    if device != "cpu":
        return len(devices(device)) if isinstance(workers, str) else workers
    if isinstance(workers, str):
        return cores()
    return workers if _oversubscribed() else min(workers, cores())


def _oversubscribed() -> bool:
    return os.environ.get("FEDLOOM_OVERSUBSCRIBE", "") not in ("", "0")
