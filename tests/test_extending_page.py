"""docs/extending.md: every code block and every command of the page works as printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fedloom as fl
from fedloom.studies.tune.chosen import read

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^    (fedloom run .*)$", PAGE, re.MULTILINE)
TUNED = re.findall(r"^    (fedloom tune .*)$", PAGE, re.MULTILINE)
REFUSED = re.findall(r"^    \$ (fedloom run .*)\n    (error: .*)$", PAGE, re.MULTILINE)
pytestmark = pytest.mark.slow  # every command is a process of its own
SMALL = "--clients 5 --fraction 0.8 --workers 1 --eval-every 0 --name page"


def fedloom(command: str, more: str = SMALL) -> subprocess.CompletedProcess[str]:
    Path("mine.py").write_text("\n\n".join(BLOCKS), encoding="utf-8")
    words = [sys.executable, "-m", *shlex.split(command), *shlex.split(more)]
    return subprocess.run(words, capture_output=True, text=True)


def test_the_page_has_examples() -> None:
    assert len(BLOCKS) == 5 and len(COMMANDS) == 4 and len(REFUSED) == 1 and len(TUNED) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_trains_as_printed_and_its_part_takes_effect(command: str) -> None:
    ran = fedloom(command)
    assert ran.returncode == 0, ran.stderr
    run = fl.Run(Path("runs/page"))
    assert len(run.rounds) == 3 and all(line["lost"] == 0 for line in run.rounds)
    part, _, rest = run.recipe.method.partition(" + ")
    rest = rest.partition("(")[0]
    without = fl.run(run.recipe.changed(method=rest, parts=(), name=None, out="without"))
    assert run.summary["digest"] != without.summary["digest"], f"{part} changes nothing"


@pytest.mark.parametrize(("command", "message"), REFUSED)
def test_the_refused_sum_is_refused_as_printed(command: str, message: str) -> None:
    refused = fedloom(command)
    assert refused.returncode == 2
    assert message in " ".join(refused.stderr.split())


def test_declared_ranges_are_searched_as_printed() -> None:
    ran = fedloom(TUNED[0], "--out tuned")
    assert ran.returncode == 0, ran.stderr
    (chosen,) = read("tuned").methods
    assert chosen.ranges == {"lr": "log:0.0015..2", "sharpen.temperature": "log:0.1..2"}
    assert chosen.trials == 4
