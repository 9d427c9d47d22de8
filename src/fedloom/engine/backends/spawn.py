"""A transport to fresh processes on this machine, over pipes: for accelerators, whose drivers do not survive a fork.

An order is a JSON text followed by byte strings, and so is an answer. `main` is the worker. Processes are not started by
`multiprocessing`, so a user's script needs no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.engine.backends.blueprint import Answer, BuiltWorker
from fedloom.engine.backends.fork import end_with_main
from fedloom.engine.buffers import Bytes


class Process:
    """A worker: its pipe, and the version of the common bytes that it has."""

    def __init__(self) -> None:
        self._alive = os.pipe()  # never written to: the worker exits when its last writer, this process, is dead
        mine, theirs = socket.socketpair()
        ends = theirs.fileno(), self._alive[0]
        paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from fedloom.engine.backends.spawn import main; main()", *map(str, ends)],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
            pass_fds=ends,
        )
        theirs.close()
        self.pipe, self.version = Connection(mine.detach()), ""

    def end(self) -> None:
        self.pipe.close()
        self._process.kill()
        self._process.wait()
        for end in self._alive:
            os.close(end)


_idle: list[Process] = []  # between the runs of a block of `kept`
_keepers = 0


@contextmanager
def kept() -> Iterator[None]:
    """Runs inside the block use each other's processes: importing torch takes seconds."""
    global _keepers
    _keepers += 1
    try:
        yield
    finally:
        _keepers -= 1
        while _idle and not _keepers:
            _idle.pop().end()


class Processes:
    """A transport to processes on this machine."""

    name = "this machine"

    def __init__(self) -> None:
        self._workers: dict[int, Process] = {}

    def start(self, worker: int) -> None:
        self._workers[worker] = _idle.pop() if _idle else Process()

    def send(
        self, worker: int, order: dict[str, Any], common: tuple[str, Bytes] | None, values: Sequence[Bytes]
    ) -> None:
        process, new_bytes = self._workers[worker], None
        if common is not None and process.version != common[0]:
            process.version, new_bytes = common
        with suppress(OSError):  # the worker is dead, which receiving will show
            _send(process.pipe, {"order": order, "common": new_bytes is not None}, [*values, *_one(new_bytes)])

    def wait(self, workers: Sequence[int], seconds: float) -> list[int]:
        worker_of = {self._workers[worker].pipe: worker for worker in workers}
        return [worker_of[pipe] for pipe in wait(list(worker_of), seconds) if isinstance(pipe, Connection)]

    def receive(self, worker: int) -> Answer | None:
        try:
            return _receive(self._workers[worker].pipe)
        except (EOFError, OSError):
            return None

    def end(self, worker: int) -> None:
        self._workers.pop(worker).end()

    def close(self, waiting: Sequence[int]) -> None:
        for worker, process in self._workers.items():
            if worker in waiting and _keepers:
                process.version = ""  # another run's broadcasts have the same numbers
                _idle.append(process)
            else:
                process.end()
        self._workers.clear()


def _one(value: Bytes | None) -> list[Bytes]:
    return [] if value is None else [value]


def _send(pipe: Connection, message: dict[str, Any], values: Sequence[Bytes]) -> None:
    pipe.send_bytes(json.dumps({**message, "values": len(values)}).encode())
    for value in values:
        pipe.send_bytes(np.ascontiguousarray(value).data if value.size else b"")


def _receive(pipe: Connection) -> tuple[dict[str, Any], list[Bytes]]:
    message = json.loads(pipe.recv_bytes())
    return message, [np.frombuffer(pipe.recv_bytes(), dtype=np.uint8) for _ in range(message.pop("values"))]


def main() -> None:
    """The main loop of a worker: order after order, until the main process closes the pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the main process handles it
    pipe, alive = Connection(int(sys.argv[1])), int(sys.argv[2])
    threading.Thread(target=end_with_main, args=(alive,), daemon=True).start()
    worker = BuiltWorker()
    with suppress(EOFError, OSError):
        while True:
            message, values = _receive(pipe)
            common = values.pop() if message["common"] else None
            report, written = worker.answer(message["order"], common, values)
            _send(pipe, report, written)
    os._exit(0)
