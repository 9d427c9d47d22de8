"""Runs without trouble to compare with, parts that make trouble, and nothing left running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import oddities
import processes
import pytest

import fedloom as fl
from fedloom.methods.method import _PARTS

Straight = Callable[..., fl.Run]


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """Runs a recipe from beginning to end, once a session."""
    known: dict[str, fl.Run] = {}

    def run(**fields: Any) -> fl.Run:
        key = json.dumps(fields, sort_keys=True)
        if key not in known:
            known[key] = fl.run(fields, out=str(tmp_path_factory.mktemp("straight") / "run"))
        return known[key]

    return run


@pytest.fixture(autouse=True)
def _end_children() -> Iterator[None]:
    yield
    for leader in processes.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
    processes.started.clear()


@pytest.fixture
def odd_parts() -> Iterator[oddities.Seen]:
    with oddities.odd_parts() as seen:
        yield seen


@pytest.fixture
def forget_parts() -> Iterator[None]:
    """Parts that the test defines or imports are known during the test only."""
    before = dict(_PARTS)
    yield
    _PARTS.clear()
    _PARTS.update(before)
