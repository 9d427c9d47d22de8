"""Every test has a cache and a working folder of its own, and leaves no process behind."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import oddities
import processes
import pytest
import torch
from folders import share_kernels

import fedloom as fl
from fedloom.methods.api.registry import PARTS

Straight = Callable[..., fl.Run]


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One cache for the whole session: images are decoded once."""
    cache = tmp_path_factory.getbasetemp().parent / "fedloom-cache"
    os.environ["FEDLOOM_CACHE"] = str(cache)
    share_kernels(cache)
    os.environ.pop("FEDLOOM_DATA", None)
    os.environ["FEDLOOM_OVERSUBSCRIBE"] = "1"  # promises about workers are kept on any number of cores
    torch.set_num_threads(1)
    gc.freeze()  # hundreds of thousands of objects of modules: collections and forks that look at them take a while


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own, but for the kernels compiled on this machine."""
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    share_kernels(tmp_path / "cache")
    return tmp_path / "cache"


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
    before = dict(PARTS)
    yield
    PARTS.clear()
    PARTS.update(before)
