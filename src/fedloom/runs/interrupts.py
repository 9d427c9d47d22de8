"""Stopping a run where its state is consistent."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupts:
    """Ctrl-C and SIGTERM take effect only where the state is consistent; a second one ends the process at once."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self._open = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._signal is not None and kind is None:
            signal.raise_signal(self._signal)  # too late to stop this run, but not what its caller does next

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            os._exit(130)  # the last checkpoint is whole, and workers end by themselves
        self._signal = number
        if self._open:
            raise KeyboardInterrupt

    @contextmanager
    def now(self) -> Iterator[None]:
        """A block that may be interrupted."""
        if self._signal is not None:
            raise KeyboardInterrupt
        self._open = True
        try:
            yield
        finally:
            self._open = False
