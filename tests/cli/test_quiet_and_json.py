"""--quiet and --json: what scripts read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.cli.main import main
from fedloom.cli.outcome import plain

SMALL = ["--rounds", "1", "--clients", "10", "--eval-every", "0", "--workers", "1"]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code, out, err = call(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_results_of_a_run_and_of_what_follows_it_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    run = result(capsys, "run", *SMALL, "--name", "x")
    assert run["path"] == "runs/x"
    assert run["test_accuracy"] == json.loads(Path("runs/x/summary.json").read_text())["test_accuracy"]
    assert list(result(capsys, "personalize", "runs/x", "--epochs", "1")) == ["runs/x"]
    assert result(capsys, "analyze", "runs/x", "--what", "cost")["path"] == "runs/x/analysis"
    assert call(capsys, "report", "runs/x", "-q") == (0, "report.html\n", "")


def test_results_of_a_comparison_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    compared = result(capsys, "compare", *SMALL, "--methods", "fedavg; fn", "--no-personal", "--name", "c")
    assert [row["method"] for row in compared["rows"]] == ["fedavg", "fn"]
    assert compared["rows"][0]["mean"]["global"] == compared["runs"][0]["values"]["global"]
    swept = result(capsys, "sweep", *SMALL, "--over", "lr=0.1,0.2", "--name", "s")
    assert [row["settings"] for row in swept["rows"]] == [{"lr": "0.1"}, {"lr": "0.2"}]
    assert call(capsys, "sweep", *SMALL, "--over", "lr=0.1,0.2", "--name", "s", "-q") == (0, "runs/s\n", "")


def test_splits_lists_and_plans_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert sum(result(capsys, "split", "--clients", "10")["stages"][0]["train"]) == 1437
    assert {"name": "scaffold", "sum": "scaffold"}.items() <= next(
        entry for entry in result(capsys, "list", "methods") if entry["name"] == "scaffold"
    ).items()
    assert "fedbabu/table5" in {row["name"] for row in result(capsys, "reproduce", "list", "fedbabu")}
    Path("r.yaml").write_text("clients: 10\n")
    assert result(capsys, "flower", "plan", "r.yaml")["bytes_up"] > 0


def test_errors_are_printed_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--json", "--quiet"):
        code, out, err = call(capsys, "run", "--rounds", "0", flag)
        assert (code, out) == (2, "") and err.startswith("error: rounds")


def test_numbers_that_json_lacks_are_null() -> None:
    values = {"a": float("nan"), 1: (np.float64(2), np.array([1, 2])), "p": Path("x"), "inf": [float("inf")]}
    assert plain(values) == {"a": None, "1": [2.0, [1, 2]], "p": "x", "inf": [None]}
