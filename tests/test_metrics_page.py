"""docs/metrics.md: its code and its commands work as printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import fedloom as fl
from fedloom.cli.main import main
from fedloom.evaluation.metrics import METRICS

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
USE, MINE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
RUN, LIST, OWN = re.findall(r"^    fedloom (.*)$", PAGE, re.MULTILINE)


def fedloom(command: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    assert ended.value.code == 0


def test_the_metric_of_the_page_is_computed_by_the_command_of_the_page() -> None:
    Path("mine.py").write_text(MINE)
    try:
        fedloom(f"{OWN} --clients 5 --model linear --workers 1 --name own")
    finally:
        METRICS.pop("error_rate", None)
    run = fl.Run(Path("runs/own"))
    assert run.metrics == ("error_rate", "accuracy") and len(run.rounds) == 3
    assert run.summary["test_error_rate"] == pytest.approx(1 - run.summary["test_accuracy"])


def test_the_commands_and_the_python_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    fedloom(f"{RUN} --clients 5 --model linear --workers 1 --rounds 2 --name first")
    assert set(fl.Run(Path("runs/first")).summary) > {"test_macro_f1", "test_accuracy", "test_auroc", "test_loss"}
    capsys.readouterr()
    fedloom(LIST)
    listed = capsys.readouterr().out
    assert all(name in listed for name in METRICS)
    exec(USE.replace("rounds=5", "rounds=2, clients=5, model='linear', workers=1"), {})
