"""Workers that share no memory with this process: each is built from the recipe, and tasks carry the bytes they need.

A *transport* brings tasks to workers: pipes to processes on this machine, or Ray. This module is what transports have in
common: the longest tasks start first, a task whose worker died is run again by another, a dead worker is rebuilt while the
others continue, and a worker that was built from other data or other code is refused.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fedloom.engine.backends.blueprint import Answer, Blueprint
from fedloom.engine.backends.fork import TRIES, failure
from fedloom.engine.buffers import Bytes, SharedBuffers
from fedloom.engine.client.replica import Replica
from fedloom.engine.tasks import Assignment, Report, Task
from fedloom.errors import FedloomError

PAUSE = 1.0  # seconds between chances for Python to handle signals
START = 180.0  # seconds without any worker until the run is given up
GRACE = 15.0  # seconds that the first worker waits for the others; later ones join when they are ready


class Transport(Protocol):
    """Carries orders to workers and their answers back."""

    name: str  # in messages to the user

    def start(self, worker: int) -> None: ...
    def send(
        self, worker: int, order: dict[str, Any], common: tuple[str, Bytes] | None, values: Sequence[Bytes]
    ) -> None:
        """`common`: bytes that all workers receive, with their version."""

    def wait(self, workers: Sequence[int], seconds: float) -> list[int]:
        """The workers that have answered or died."""
        ...

    def receive(self, worker: int) -> Answer | None:
        """None if the worker died."""
        ...

    def end(self, worker: int) -> None:
        """Kill the worker."""

    def close(self, waiting: Sequence[int]) -> None:
        """End all workers; those that are `waiting` for work may be kept for another run."""


class RemoteBackend:
    """A fixed number of workers over a transport; use as a context manager."""

    def __init__(
        self,
        replica: Replica,
        buffers: SharedBuffers,
        transport: Transport,
        count: int,
        devices: Sequence[str] = ("cpu",),
    ) -> None:
        self.replica, self.buffers, self.count, self.deaths = replica, buffers, count, 0
        self._transport, self._devices = transport, devices
        self._blueprint = Blueprint.of(replica.experiment, buffers.rows)
        self._idle: deque[int] = deque()
        self._starting: set[int] = set()  # workers that are being built, or checked for being alive
        self._failed = [0] * count  # by worker: number of deaths before its first task
        self._closed = False

    def __enter__(self) -> RemoteBackend:
        try:
            for worker in range(self.count):
                self._start(worker)
            first, began = None, time.monotonic()
            while self._starting and (first is None or time.monotonic() < first + GRACE):
                self._first_answers(self._transport.wait(list(self._starting), PAUSE))
                if self._idle and first is None:
                    first = time.monotonic()
                self._check_progress(began)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._transport.close(list(self._idle))
            self._idle.clear()
            self._starting.clear()

    def run(self, assignments: Sequence[Assignment], done: Callable[[int], None] | None = None) -> list[Report | None]:
        """As `ForkBackend.run`; afterwards the buffers hold what the tasks wrote."""
        try:
            return self._run(assignments, done)
        except BaseException:
            self.close()
            raise

    def _run(self, assignments: Sequence[Assignment], done: Callable[[int], None] | None) -> list[Report | None]:
        if self._closed:
            raise FedloomError("these workers are closed")
        reports: list[Report | None] = [None] * len(assignments)
        waiting = deque(sorted(range(len(assignments)), key=lambda i: -assignments[i].cost))
        tries = [0] * len(assignments)
        busy: dict[int, int] = {}
        began = time.monotonic()
        while waiting or busy:
            while waiting and self._idle:
                worker, i = self._idle.popleft(), waiting.popleft()
                busy[worker] = i
                self._send(worker, assignments[i])
            answered = self._transport.wait([*busy, *self._starting], PAUSE)
            self._first_answers([worker for worker in answered if worker in self._starting])
            for worker in [worker for worker in answered if worker in busy]:
                i = busy.pop(worker)
                answer = self._transport.receive(worker)
                if answer is None:
                    tries[i] += 1
                    self._replace(worker)
                    if tries[i] < TRIES:
                        waiting.appendleft(i)
                        continue
                else:
                    self._idle.append(worker)
                    reports[i] = self._take(worker, assignments[i].task, answer)
                if done:
                    done(i)
            if busy or self._idle:
                began = time.monotonic()
            self._check_progress(began)
        return reports

    def _send(self, worker: int, assignment: Assignment) -> None:
        if assignment.prepare:
            assignment.prepare(worker)
        buffers, task = self.buffers, assignment.task
        order = {
            **task.to_json(),
            "module": type(task).__module__,
            "worker": worker,
            "round": int(buffers.down["round"]),
        }
        values = buffers.read(task.reads(worker))
        order["version"] = version = f"broadcast {buffers.broadcasts}"
        self._transport.send(worker, order, (version, buffers.down_row.numpy()), values)

    def _take(self, worker: int, task: Task, answer: Answer) -> Report:
        report, values = answer
        if "error" in report:
            raise failure(task, report["error"])
        self.buffers.write(task.writes(worker), values)
        return report

    # workers that start and die

    def _start(self, worker: int) -> None:
        self._transport.start(worker)
        device = self._devices[worker % len(self._devices)]
        order = {**self._blueprint.order, "recipe": {**self._blueprint.order["recipe"], "device": device}}
        self._starting.add(worker)
        self._transport.send(worker, order, ("blueprint", self._blueprint.tensors), [])

    def _replace(self, worker: int) -> None:
        """Rebuild a dead worker. Its whole machine may be gone, so idle workers are checked before they get work."""
        self.deaths += 1
        self._transport.end(worker)
        self._start(worker)
        while self._idle:
            other = self._idle.popleft()
            self._starting.add(other)
            self._transport.send(other, {"kind": "ping"}, None, [])

    def _first_answers(self, workers: Sequence[int]) -> None:
        """The first answers of workers that are starting."""
        for worker in workers:
            self._starting.discard(worker)
            answer = self._transport.receive(worker)
            if answer is not None:
                self._check(answer[0])
                self._failed[worker] = 0
                self._idle.append(worker)
                continue
            self._failed[worker] += 1
            self.deaths += 1
            self._transport.end(worker)
            if self._failed[worker] < TRIES:
                self._start(worker)

    def _check(self, report: Report) -> None:
        """Refuse a worker that was built from other code or data."""
        host = report.get("host", "")
        if "error" in report:
            raise FedloomError(f"workers: a worker on {host} cannot be built: {report['error']['message']}")
        if "built" not in report:
            return
        expected = self._blueprint.expected
        differing = [name for name, value in expected.items() if report["built"].get(name) != value]
        for name in ("fedloom", "torch"):
            if name in differing:
                raise FedloomError(
                    f"workers: {host} has {name} {report['built'].get(name)}, this machine {expected[name]}; bits are the "
                    f"same only where versions are"
                )
        if "images" in differing:
            setting = f"its FEDLOOM_DATA is {report['data']}" if report["data"] else "its FEDLOOM_DATA is not set"
            raise FedloomError(
                f"data: {self.replica.experiment.recipe.data.name} on {host} holds other samples than here "
                f"(digest {report['built']['images']}, here {expected['images']}; {setting}); give it the same file"
            )
        if differing:
            raise FedloomError(
                f"workers: {host} builds something else from this recipe (its {differing[0]} differ); "
                f"give it the same code and data"
            )

    def _check_progress(self, began: float) -> None:
        """Stop the run if no worker can be started."""
        if not self._idle and not self._starting and all(n >= TRIES for n in self._failed):
            raise FedloomError(f"workers: every worker of {self._transport.name} died before it ran a task")
        if not self._idle and time.monotonic() > began + START:
            raise FedloomError(
                f"workers: no worker of {self._transport.name} started within {START:g} s; are all its cores in use?"
            )
