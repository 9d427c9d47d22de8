"""Tuning: choices depend on validation samples, seed and methods; not on test labels, workers, or a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import fedloom as fl
from fedloom.cli.main import main
from fedloom.report.page.content import content
from fedloom.studies.tune.budget import read_budget
from fedloom.studies.tune.chosen import read
from fedloom.studies.tune.plan import plan

FIELDS: dict[str, Any] = {"clients": 5, "rounds": 2, "model": "linear", "workers": 1}


def trials(folder: str | Path) -> list[Any]:
    """Every trial without what is measured in seconds."""
    rows = [line.split(",") for line in (Path(folder) / "trials.csv").read_text().splitlines()]
    return [row[: rows[0].index("seconds")] for row in rows]


def choices(folder: str | Path) -> list[Any]:
    return [chosen.model_dump(exclude={"seconds"}) for chosen in read(folder).methods]


def test_choices_are_the_same_for_any_workers_and_from_any_part_of_a_record() -> None:
    study = fl.tune("fedavg; fd(beta=?)", trials=5, out="a", **FIELDS)
    assert [len([t for t in study.trials if t.method == m]) for m in study.best] == [5, 5]
    assert study.trials[0].values == {"lr": 0.1} and study.trials[0].state == "finished"
    assert all(chosen.value >= chosen.default_value for chosen in study.tuned.methods)
    assert len(study.rows()) == 10 and len(study.plot().data) == 6
    assert not list(Path("a").rglob("round-*.safetensors"))  # checkpoints are removed when trials end
    shutil.copytree("a", "b")
    lines = Path("b/trials.jsonl").read_text().splitlines(keepends=True)
    Path("b/trials.jsonl").write_text("".join(lines[:5]) + lines[5][:20])  # what a kill may leave
    shutil.rmtree("b/fedavg/trial-001")
    Path("b/tuned.json").unlink()
    fl.tune("fedavg; fd(beta=?)", trials=5, out="b", **{**FIELDS, "workers": 2})
    assert [row[:-1] for row in trials("a")] == [row[:-1] for row in trials("b")]
    assert choices("a") == choices("b")
    (tuning,) = content(["a"])["tunings"]
    assert [len(method["trials"]) for method in tuning["methods"]] == [5, 5] and content(["a"])["series"] == []
    with pytest.raises(fl.FedloomError, match="holds a tuning with other trials"):
        fl.tune("fedavg; fd(beta=?)", trials=6, out="a", **FIELDS)
    with pytest.raises(fl.FedloomError, match="another recipe \\(rounds was 2, and now is 3\\)"):
        fl.tune("fedavg; fd(beta=?)", trials=5, out="a", **{**FIELDS, "rounds": 3})


def test_test_labels_have_no_part_in_trials_and_choices() -> None:
    x, y = load_digits(return_X_y=True)
    images, held = x.reshape(-1, 8, 8, 1).astype(np.uint8), np.arange(len(y)) % 5 == 0
    studies = []
    for name, labels in (("true", y[held]), ("wrong", (y[held] + 3) % 10)):
        np.savez(f"{name}.npz", train_x=images[~held], train_y=y[~held], test_x=images[held], test_y=labels)
        fl.tune("fedper", {"lr": [0.01, 0.1, 1.0]}, out=name, data=f"{name}.npz", **FIELDS)
        studies.append(name)
    assert [row[:-1] for row in trials("true")] == [row[:-1] for row in trials("wrong")]
    first, second = (read(name).methods[0] for name in studies)
    assert (first.row, first.value) == (second.row, second.value)
    assert first.selected_on == "clients' own models"
    lines = [json.loads(line) for path in Path("true").rglob("rounds.jsonl") for line in path.open()]
    assert lines and not [name for line in lines for name in line if "test" in name]


def test_diverged_trials_are_results_and_edges_are_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--methods fedavg --over lr=0.1,1e38,1e37 --rounds 2 --workers 1 --clients 5 --out d"
    with pytest.raises(SystemExit) as end:
        main(["tune", *flags.split()])
    assert end.value.code == 0
    (chosen,) = read("d").methods
    assert (chosen.row, chosen.diverged, chosen.trials) == ("fedavg @ lr=0.1", 2, 3)
    printed = capsys.readouterr().out
    assert "2 of 3 trials diverged" in printed and "is the lowest of 0.1,1e+38,1e+37" in printed
    assert "next: fedloom compare --tuned d --seeds 5" in printed


def test_a_study_is_a_data_frame() -> None:
    pytest.importorskip("pandas")
    frame = fl.tune("fedavg", {"lr": [0.1, 1.0]}, out="f", **FIELDS).frame()
    assert frame["lr"].tolist() == [0.1, 1.0] and frame["state"].tolist() == ["finished", "finished"]


class Planted(fl.Part):
    """Has a default space in which nothing can be learned."""

    rate_scale = fl.RateScale(1e-9, 1e-8, source="planted")


def test_a_bad_default_space_is_warned_about() -> None:
    study = fl.tune("planted", trials=4, out="p", **FIELDS)
    (warnings,) = study.warnings.values()
    assert study.best == {"planted": "planted @ lr=0.1"}
    assert any("is outside of the declared range log:3e-12..1e-08" in text for text in warnings)
    assert any("at the upper edge" in text for text in warnings)
    assert any("4 trials are few for 1 tuned value; take 8" in text for text in warnings)


def test_a_given_space_in_which_nothing_is_learned_is_warned_about() -> None:
    study = fl.tune("fedavg; fedper", {"lr": [1e-7, 1e-6]}, out="n", **FIELDS)
    assert all(any("no trial learned much" in text for text in each) for each in study.warnings.values())
    assert len(study.warnings) == 2


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--over fd.beta=0.3..0.9 --methods fedavg;fn", "over: fd.beta is tuned, but no method has the part 'fd'"),
        ("--over prox.nu=1..2 --methods prox", "over: prox has no 'nu'; its hyper-parameters are: mu, beta"),
        (
            "--over momentum=0.5..1.5",
            "over: the range 0.5..1.5 of momentum cannot be used: momentum: must be less than 1",
        ),
        ("--trials 0", "trials: must be a whole number from 1 to 10000 (got 0)"),
        ("--trials 4 --budget 2h", "budget: trials and budget are given"),
        ("--budget 2x", "budget: cannot read '2x'; write a time such as 2h"),
        ("--methods fedper --set data.validation_from=pool", "data.validation_from: clients of 'fedper' have models"),
        ("--methods fedavg@lr=1", "over: nothing is tuned of any method"),
    ],
)
def test_refusals_are_sentences_and_write_nothing(
    flags: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["tune", "--rounds", "2", *flags.split()])
    assert end.value.code == 2 and f"error: {sentence}" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_budget_of_rounds_is_shared_equally() -> None:
    planned = plan("fedavg; fn", FIELDS, (), read_budget(None, "60 rounds"))
    counts = [planned.trials(space) for space in planned.spaces]
    assert counts[0] == counts[1] and counts[0] > 10
    assert 50 < planned.rounds <= 60


@pytest.mark.slow
def test_a_killed_tuning_resumes_to_the_same_choices() -> None:
    flags = ["--methods", "fedavg;fn;dr+fd(beta=?)", "--trials", "6", "--rounds", "8", "--clients", "10"]
    fl.tune("fedavg;fn;dr+fd(beta=?)", trials=6, rounds=8, clients=10, out="straight")
    command = [sys.executable, "-m", "fedloom", "tune", *flags, "--out", "killed"]
    for lines in (1, 4, 9, 15):
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        record = Path("killed/trials.jsonl")
        until = time.monotonic() + 120
        while time.monotonic() < until and (not record.exists() or record.read_bytes().count(b"\n") < lines):
            time.sleep(0.02)
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert [row[:-1] for row in trials("killed")] == [row[:-1] for row in trials("straight")]
    assert choices("killed") == choices("straight")


@pytest.mark.slow
def test_a_budget_of_time_gives_every_method_about_its_share() -> None:
    study = fl.tune("fedavg; fn", budget="6s", out="t", **FIELDS)
    assert all(chosen.trials > 1 for chosen in study.tuned.methods)
    again = fl.tune("fedavg; fn", budget="6s", out="t", **FIELDS)
    assert again.best == study.best and again.trials == study.trials
