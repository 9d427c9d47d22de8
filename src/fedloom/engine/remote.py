"""Lanes that share nothing with this process: each is built from the recipe, gets bytes with a job and sends bytes back.

How orders reach them is a *transport*: pipes to processes of this machine, or Ray. Here is what does not depend on it: the
longest jobs first, a job whose lane died is done again by another, a lane that died is built anew while the others go
on, and a lane that was built from other images or other code is refused.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fedloom.engine.blueprint import Answer, Blueprint
from fedloom.engine.board import Board
from fedloom.engine.lanes import TRIES, Job, Report, failure
from fedloom.engine.regions import Bytes, read, touched, write
from fedloom.engine.worker import Worker
from fedloom.errors import FedloomError

PAUSE = 1.0  # seconds until Python may look at signals again
START = 180.0  # seconds without any lane, after which there will be none
GRACE = 15.0  # seconds that the first lane waits for the others; those that come later join in


class Transport(Protocol):
    """Orders to lanes and their answers."""

    name: str  # for sentences

    def start(self, lane: int) -> None: ...
    def send(self, lane: int, order: dict[str, Any], common: tuple[str, Bytes] | None, values: Sequence[Bytes]) -> None:
        """`common`: what all lanes are sent, with its version."""

    def wait(self, lanes: Sequence[int], seconds: float) -> list[int]:
        """Those that have answered or died."""
        ...

    def receive(self, lane: int) -> Answer | None:
        """None: it died."""
        ...

    def end(self, lane: int) -> None:
        """Now, whatever it does."""

    def close(self, waiting: Sequence[int]) -> None:
        """All are done; those that are `waiting` have nothing to do and may be kept."""


class RemoteLanes:
    """A runner over a transport; use as a context."""

    def __init__(
        self, worker: Worker, board: Board, transport: Transport, count: int, devices: Sequence[str] = ("cpu",)
    ) -> None:
        self.worker, self.board, self.count, self.deaths = worker, board, count, 0
        self._transport, self._devices = transport, devices
        self._blueprint = Blueprint.of(worker.experiment, board.rows)
        self._idle: deque[int] = deque()
        self._coming: set[int] = set()  # lanes that are being built, or asked whether they are still there
        self._failed = [0] * count  # deaths before anything was done, by lane
        self._closed = False

    def __enter__(self) -> RemoteLanes:
        try:
            for lane in range(self.count):
                self._start(lane)
            first, began = None, time.monotonic()
            while self._coming and (first is None or time.monotonic() < first + GRACE):
                self._hear(self._transport.wait(list(self._coming), PAUSE))
                if self._idle and first is None:
                    first = time.monotonic()
                self._patience(began)
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
            self._coming.clear()

    def run(self, jobs: Sequence[Job], done: Callable[[int], None] | None = None) -> list[Report | None]:
        """As `Lanes.run` does; what jobs write is on the board when this returns."""
        try:
            return self._run(jobs, done)
        except BaseException:
            self.close()
            raise

    def _run(self, jobs: Sequence[Job], done: Callable[[int], None] | None) -> list[Report | None]:
        if self._closed:
            raise FedloomError("these lanes are closed")
        reports: list[Report | None] = [None] * len(jobs)
        waiting, tries = deque(sorted(range(len(jobs)), key=lambda i: -jobs[i].cost)), [0] * len(jobs)
        busy: dict[int, int] = {}
        began = time.monotonic()
        while waiting or busy:
            while waiting and self._idle:
                lane, i = self._idle.popleft(), waiting.popleft()
                busy[lane] = i
                self._send(lane, jobs[i])
            answered = self._transport.wait([*busy, *self._coming], PAUSE)
            self._hear([lane for lane in answered if lane in self._coming])
            for lane in [lane for lane in answered if lane in busy]:
                i = busy.pop(lane)
                answer = self._transport.receive(lane)
                if answer is None:
                    tries[i] += 1
                    self._replace(lane)
                    if tries[i] < TRIES:
                        waiting.appendleft(i)
                        continue
                else:
                    self._idle.append(lane)
                    reports[i] = self._take(lane, jobs[i], answer)
                if done:
                    done(i)
            if busy or self._idle:
                began = time.monotonic()
            self._patience(began)
        return reports

    def _send(self, lane: int, job: Job) -> None:
        if job.prepare:
            job.prepare(lane)
        board = self.board
        order = {"kind": job.kind, "arguments": job.arguments, "lane": lane, "round": int(board.down["round"])}
        values = read(board, touched(job.kind, job.arguments, lane).reads)
        order["version"] = version = f"broadcast {board.broadcasts}"
        self._transport.send(lane, order, (version, board.down_row.numpy()), values)

    def _take(self, lane: int, job: Job, answer: Answer) -> Report:
        report, values = answer
        if "error" in report:
            raise failure(job, report["error"])
        write(self.board, touched(job.kind, job.arguments, lane).writes, values)
        return report

    # lanes that come and go

    def _start(self, lane: int) -> None:
        self._transport.start(lane)
        device = self._devices[lane % len(self._devices)]
        order = {**self._blueprint.order, "recipe": {**self._blueprint.order["recipe"], "device": device}}
        self._coming.add(lane)
        self._transport.send(lane, order, ("blueprint", self._blueprint.tensors), [])

    def _replace(self, lane: int) -> None:
        """A lane died. Others may have gone with it, a whole machine perhaps: ask those that wait before giving them work."""
        self.deaths += 1
        self._transport.end(lane)
        self._start(lane)
        while self._idle:
            other = self._idle.popleft()
            self._coming.add(other)
            self._transport.send(other, {"kind": "ping"}, None, [])

    def _hear(self, lanes: Sequence[int]) -> None:
        """The first words of lanes that are coming."""
        for lane in lanes:
            self._coming.discard(lane)
            answer = self._transport.receive(lane)
            if answer is not None:
                self._check(answer[0])
                self._failed[lane] = 0
                self._idle.append(lane)
                continue
            self._failed[lane] += 1
            self.deaths += 1
            self._transport.end(lane)
            if self._failed[lane] < TRIES:
                self._start(lane)

    def _check(self, report: Report) -> None:
        """Refuse a lane that is not what this run needs."""
        host = report.get("host", "")
        if "error" in report:
            raise FedloomError(f"lanes: a lane on {host} cannot be built: {report['error']['said']}")
        if "built" not in report:
            return
        expected = self._blueprint.expected
        other = [name for name, value in expected.items() if report["built"].get(name) != value]
        for name in ("fedloom", "torch"):
            if name in other:
                raise FedloomError(
                    f"lanes: {host} has {name} {report['built'].get(name)}, this machine {expected[name]}; bits are the "
                    f"same only where versions are"
                )
        if "images" in other:
            where = f"its FEDLOOM_DATA is {report['data']}" if report["data"] else "its FEDLOOM_DATA is not set"
            raise FedloomError(
                f"data: {self.worker.experiment.recipe.data.name} on {host} holds other images than here "
                f"(digest {report['built']['images']}, here {expected['images']}; {where}); give it the same file"
            )
        if other:
            raise FedloomError(
                f"lanes: {host} builds something else from this recipe (its {other[0]} differ); "
                f"give it the same code and data"
            )

    def _patience(self, began: float) -> None:
        if not self._idle and not self._coming and all(n >= TRIES for n in self._failed):
            raise FedloomError(f"lanes: every lane of {self._transport.name} died before it could do anything")
        if not self._idle and time.monotonic() > began + START:
            raise FedloomError(
                f"lanes: no lane of {self._transport.name} is there after {START:g} s; are all its cores taken?"
            )
