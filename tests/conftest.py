"""Every test has a cache and a working folder of its own, and leaves no process behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One cache for the whole session: images are decoded once."""
    os.environ["FEDLOOM_CACHE"] = str(tmp_path_factory.getbasetemp().parent / "fedloom-cache")
    os.environ.pop("FEDLOOM_DATA", None)
    os.environ["FEDLOOM_OVERSUBSCRIBE"] = "1"  # promises about lanes are kept on any number of cores
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
