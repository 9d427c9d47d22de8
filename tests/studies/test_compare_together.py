"""Two comparisons into one folder: real processes, one cell at a time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedloom as fl

FLAGS = ["--clients", "5", "--fraction", "0.4", "--workers", "1", "--eval-every", "0", "--no-personal"]
FIELDS = {"clients": 5, "fraction": 0.4, "workers": 1, "eval_every": 0}
Process = subprocess.Popen[str]


class Starter:
    def __init__(self) -> None:
        self.started: list[Process] = []

    def __call__(self, *arguments: str) -> Process:
        command = [sys.executable, "-m", "fedloom", "compare", *FLAGS, "--name", "c", *arguments]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "COLUMNS": "300"},
        )
        self.started.append(process)
        return process


@pytest.fixture
def start() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    for process in starter.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(path: str) -> None:
    until = time.monotonic() + 90
    while not Path(path).exists():
        assert time.monotonic() < until
        time.sleep(0.02)


def paused(process: Process) -> None:
    """A comparison that works on its first cell, and stands still in the middle of it."""
    wait_for("runs/c/fedavg/.seed0.lock")
    os.killpg(process.pid, signal.SIGSTOP)
    assert not Path("runs/c/fedavg/seed0/summary.json").exists()


def read_until(process: Process, words: str) -> str:
    assert process.stdout is not None
    said = ""
    while words not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    return said


WAITING = "waiting for fedavg, seed 0: another process works on runs/c/fedavg/seed0"


@pytest.mark.slow
def test_the_second_waits_for_a_cell_and_both_tell_the_same(start: Starter) -> None:
    arguments = ["--methods", "fedavg; fn", "--rounds", "60"]
    first = start(*arguments)
    paused(first)
    second = start(*arguments)
    read_until(second, WAITING)
    os.killpg(first.pid, signal.SIGCONT)
    told = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], told
    assert "ailed" not in told[0] + told[1]
    tables = [text[text.index("method") :] for text in told]
    assert tables[0] == tables[1]
    assert not list(Path("runs/c").rglob(".*.lock"))


@pytest.mark.slow
def test_a_killed_comparison_leaves_no_lock_behind(start: Starter) -> None:
    first = start("--methods", "fedavg", "--rounds", "60")
    paused(first)
    second = start("--methods", "fedavg", "--rounds", "60")
    read_until(second, WAITING)
    os.killpg(first.pid, signal.SIGKILL)
    said, _ = second.communicate(timeout=120)
    assert second.returncode == 0, said
    straight = fl.run(FIELDS, rounds=60)
    assert fl.Run(Path("runs/c/fedavg/seed0")).summary["digest"] == straight.summary["digest"]


@pytest.mark.slow
def test_a_cell_that_another_recipe_took_meanwhile_is_refused(start: Starter) -> None:
    first = start("--methods", "fedavg", "--rounds", "60")
    wait_for("runs/c/fedavg/.seed0.lock")
    second = start("--methods", "fedavg", "--rounds", "60", "--lr", "0.01")
    told = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert first.returncode == 0
    assert second.returncode in (1, 2), told[1]
    assert "runs/c/fedavg/seed0 holds a run of another recipe" in told[1]
