"""--protocol in run, compare and sweep, and in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedloom as fl
from fedloom.cli.main import main

SMALL = {"data": "digits", "model": "mlp", "clients": 10, "fraction": 0.2, "workers": 1}
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    return int(stop.value.code or 0)


def test_run_takes_everything_but_the_method_from_a_protocol(tmp_path: Path) -> None:
    out = tmp_path / "x"
    assert (
        call("run", "--protocol", "fedfn-cifar100", "--method", "fn", *FLAGS, "--rounds", "2", "--out", str(out), "-q")
        == 0
    )
    recipe = fl.Run(out).recipe
    assert (recipe.lr, recipe.epochs, recipe.batch, recipe.momentum) == (0.5, 5, 50, 0.9)
    assert (recipe.schedule, recipe.augment, recipe.bn, recipe.rounds) == ("step", "flip", "batch", 2)


def test_flags_and_set_override_a_protocol_and_python_does_the_same(tmp_path: Path) -> None:
    out = tmp_path / "x"
    words = ["--lr", "0.2", "--epochs", "160", "--set", "bn=running"]
    assert call("run", "--protocol", "fedbabu", "--method", "babu", *FLAGS, *words, "--out", str(out), "-q") == 0
    recipe = fl.Run(out).recipe
    assert (recipe.lr, recipe.epochs, recipe.rounds, recipe.bn) == (0.2, 160, 2, "running")
    same = fl.run(protocol="fedbabu", method="babu", lr=0.2, epochs=160, bn="running", out=str(tmp_path / "y"), **SMALL)
    assert same.recipe.digest() == recipe.digest() and same.summary["digest"] == fl.Run(out).summary["digest"]


def test_compare_gives_each_method_its_own_rate(tmp_path: Path) -> None:
    done = fl.compare(
        "fedavg; feddrplus",
        protocol="feddrplus",
        rounds=1,
        epochs=1,
        out=str(tmp_path / "c"),
        **{**SMALL, "split": "iid"},
    )
    rates = {result.cell.row: result.run.recipe.lr for result in done.results}
    assert rates == {"fedavg": 0.1, "dr + fd @ lr=5.0": 5.0}
    assert [done.label(row) for row in done.rows] == ["fedavg", "feddrplus @ lr=5.0"]


def test_sweeping_epochs_needs_rounds_where_their_product_is_fixed(tmp_path: Path) -> None:
    with pytest.raises(fl.FedloomError, match="over: epochs is swept, and the protocol fixes rounds x epochs"):
        fl.sweep({"epochs": [1, 2]}, protocol="fedbabu", out=str(tmp_path / "s"), **SMALL)
    assert not (tmp_path / "s").exists()


def test_an_unknown_protocol_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "--protocol", "fednn-digits") == 2
    assert "protocol 'fednn-digits' is unknown; did you mean fednn-digit" in capsys.readouterr().err


def test_protocols_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("list", "protocols") == 0
    said = capsys.readouterr().out
    assert "fedbabu" in said and "fednn-digit" in said
    assert {"fedbabu", "fednn-digit", "feddrplus-cifar10"} <= set(fl.protocols())
    assert call("list", "protocols", "feddrplus-cifar10") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "dr lr 0.35" in lines and "weight_decay 1e-05" in lines
    assert call("list", "protocols", "fedbab") == 2
    assert "protocol 'fedbab' is unknown; did you mean fedbabu?" in capsys.readouterr().err
