"""Lanes in fresh processes of this machine, over pipes: for accelerators, whose drivers do not survive a fork.

An order is a JSON text and then stretches of bytes; an answer likewise. `main` is the lane. It is not
started by `multiprocessing`, so that a user's script needs no `if __name__ == "__main__"`.
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

from fedloom.engine.blueprint import Answer, Resident
from fedloom.engine.lanes import end_with_main
from fedloom.engine.regions import Bytes


class Processes:
    """A transport to processes of this machine."""

    name = "this machine"

    def __init__(self) -> None:
        self._alive = os.pipe()  # nothing is written: lanes end when the last writer, this process, is gone
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._pipes: dict[int, Connection] = {}
        self._has: dict[int, str] = {}  # which version of what is common each lane has

    def start(self, lane: int) -> None:
        mine, theirs = socket.socketpair()
        ends = theirs.fileno(), self._alive[0]
        paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path)
        self._processes[lane] = subprocess.Popen(
            [sys.executable, "-c", "from fedloom.engine.spawned import main; main()", *map(str, ends)],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
            pass_fds=ends,
        )
        theirs.close()
        self._pipes[lane] = Connection(mine.detach())
        self._has.pop(lane, None)

    def send(self, lane: int, order: dict[str, Any], common: tuple[str, Bytes] | None, values: Sequence[Bytes]) -> None:
        news = None
        if common is not None and self._has.get(lane) != common[0]:
            self._has[lane], news = common
        with suppress(OSError):  # it is dead; receiving says so
            _send(self._pipes[lane], {"order": order, "common": news is not None}, [*values, *_one(news)])

    def wait(self, lanes: Sequence[int], seconds: float) -> list[int]:
        lane_of = {self._pipes[lane]: lane for lane in lanes}
        return [lane_of[pipe] for pipe in wait(list(lane_of), seconds) if isinstance(pipe, Connection)]

    def receive(self, lane: int) -> Answer | None:
        try:
            return _receive(self._pipes[lane])
        except (EOFError, OSError):
            return None

    def end(self, lane: int) -> None:
        self._pipes.pop(lane).close()
        process = self._processes.pop(lane)
        process.kill()
        process.wait()

    def close(self, waiting: Sequence[int]) -> None:
        for lane in list(self._processes):
            self.end(lane)
        for end in self._alive:
            os.close(end)


def _one(value: Bytes | None) -> list[Bytes]:
    return [] if value is None else [value]


def _send(pipe: Connection, told: dict[str, Any], values: Sequence[Bytes]) -> None:
    pipe.send_bytes(json.dumps({**told, "values": len(values)}).encode())
    for value in values:
        pipe.send_bytes(np.ascontiguousarray(value).data if value.size else b"")


def _receive(pipe: Connection) -> tuple[dict[str, Any], list[Bytes]]:
    told = json.loads(pipe.recv_bytes())
    return told, [np.frombuffer(pipe.recv_bytes(), dtype=np.uint8) for _ in range(told.pop("values"))]


def main() -> None:
    """A lane's life: order after order, until the main process closes the pipe or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the main process decides
    pipe, alive = Connection(int(sys.argv[1])), int(sys.argv[2])
    threading.Thread(target=end_with_main, args=(alive,), daemon=True).start()
    resident = Resident()
    with suppress(EOFError, OSError):
        while True:
            told, values = _receive(pipe)
            common = values.pop() if told["common"] else None
            report, made = resident.answer(told["order"], common, values)
            _send(pipe, report, made)
    os._exit(0)
