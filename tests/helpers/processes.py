"""Processes that can be watched, signalled and killed."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedloom.errors import Interrupted

FAILED, STOPPED = 9, 3  # exit codes of a child that failed, and of one that raised Interrupted
started: list[int] = []  # groups; a test that fails leaves none of them behind either


class Child:
    """A forked process with a group of its own, which its workers belong to."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            code = FAILED
            try:
                os.setsid()
                work()
                code = 0
            except Interrupted as error:
                Path("said").write_text(str(error), encoding="utf-8")
                code = STOPPED
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        started.append(self.pid)

    def signal(self, sign: int, to_group: bool = False) -> None:
        (os.killpg if to_group else os.kill)(self.pid, sign)

    def wait(self) -> int:
        """The exit code, or minus the signal that ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def die_at(step: int) -> None:
    """End this process at the given one of its steps that change files, before that step is made."""
    main, done = os.getpid(), 0

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal done
        if event == "open":
            changes = isinstance(arguments[2], int) and bool(arguments[2] & os.O_APPEND)
        else:
            changes = event in (
                "os.rename",
                "os.remove",
                "os.mkdir",
                "tempfile.mkstemp",
                "tempfile.mkdtemp",
                "os.chmod",
            )
        if changes and os.getpid() == main:
            done += 1
            if done == step:
                os.kill(main, signal.SIGKILL)

    sys.addaudithook(hear)


def group(leader: int) -> list[int]:
    """The living processes of a group: a main process and its workers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, _, belongs = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(belongs) == leader and state not in "ZX":
                found.append(int(entry.name))
    return found


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.001)
