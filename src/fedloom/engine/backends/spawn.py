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
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.engine.backends.blueprint import Answer, BuiltWorker
from fedloom.engine.backends.fork import end_with_main
from fedloom.engine.buffers import Bytes


class Processes:
    """A transport to processes on this machine."""

    name = "this machine"

    def __init__(self) -> None:
        self._alive = os.pipe()  # never written to: workers exit when its last writer, this process, is dead
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._pipes: dict[int, Connection] = {}
        self._versions: dict[int, str] = {}  # by worker: the version of the common bytes that it has

    def start(self, worker: int) -> None:
        mine, theirs = socket.socketpair()
        ends = theirs.fileno(), self._alive[0]
        paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path)
        self._processes[worker] = subprocess.Popen(
            [sys.executable, "-c", "from fedloom.engine.backends.spawn import main; main()", *map(str, ends)],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
            pass_fds=ends,
        )
        theirs.close()
        self._pipes[worker] = Connection(mine.detach())
        self._versions.pop(worker, None)

    def send(
        self, worker: int, order: dict[str, Any], common: tuple[str, Bytes] | None, values: Sequence[Bytes]
    ) -> None:
        new_bytes = None
        if common is not None and self._versions.get(worker) != common[0]:
            self._versions[worker], new_bytes = common
        with suppress(OSError):  # the worker is dead, which receiving will show
            _send(self._pipes[worker], {"order": order, "common": new_bytes is not None}, [*values, *_one(new_bytes)])

    def wait(self, workers: Sequence[int], seconds: float) -> list[int]:
        worker_of = {self._pipes[worker]: worker for worker in workers}
        return [worker_of[pipe] for pipe in wait(list(worker_of), seconds) if isinstance(pipe, Connection)]

    def receive(self, worker: int) -> Answer | None:
        try:
            return _receive(self._pipes[worker])
        except (EOFError, OSError):
            return None

    def end(self, worker: int) -> None:
        self._pipes.pop(worker).close()
        process = self._processes.pop(worker)
        process.kill()
        process.wait()

    def close(self, waiting: Sequence[int]) -> None:
        for worker in list(self._processes):
            self.end(worker)
        for end in self._alive:
            os.close(end)


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
