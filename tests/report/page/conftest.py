"""Runs that several tests of the page share; they are made once a session and not changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folders import make_adaptive, make_gaps, make_pair, make_small


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pair(tmp_path_factory.mktemp("report") / "pair")


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="session")
def adaptive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adaptive(tmp_path_factory.mktemp("report") / "adaptive")


@pytest.fixture(scope="session")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gaps(tmp_path_factory.mktemp("report"))
