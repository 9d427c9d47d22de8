"""Trackers are told what rounds.jsonl holds, and change nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import fedloom as fl
from fedloom import RunCallback
from fedloom.track.tracker import flatten

FIELDS = {"clients": 10, "fraction": 0.5, "rounds": 3, "workers": 1, "model": "linear"}
NAMES = ("train_loss", "test_accuracy", "seconds", "bytes_up", "lr", "lost")


def events(path: Path) -> dict[str, list[tuple[int, float]]]:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reading.EventAccumulator(str(path / "tensorboard"))
    found.Reload()
    return {name: [(event.step, event.value) for event in found.Scalars(name)] for name in found.Tags()["scalars"]}


def test_tensorboard_is_told_every_round_and_the_weights_do_not_know() -> None:
    pytest.importorskip("tensorboard")
    run = fl.run(FIELDS, track="tensorboard", out="told")
    found = events(run.path)
    for name in NAMES:
        assert [step for step, _ in found[name]] == [1, 2, 3]
        assert [value for _, value in found[name]] == pytest.approx([line[name] for line in run.rounds])
    plain = fl.run(FIELDS, out="untold")
    assert run.summary["digest"] == plain.summary["digest"]
    assert run.summary["recipe_digest"] == plain.summary["recipe_digest"]


def test_trackers_are_told_every_metric_that_is_defined() -> None:
    pytest.importorskip("tensorboard")
    metrics = ["macro_f1", "auroc", "loss"]
    run = fl.run(FIELDS, split="shards:1", metrics=metrics, track="tensorboard", out="told")
    scalars = events(run.path)
    for name in metrics:
        assert [value for _, value in scalars[f"test_{name}"]] == pytest.approx(list(run.curve(name).values()))
    assert "test_accuracy" not in scalars and "client_auroc" not in scalars  # a client has a single class
    assert scalars["undefined/client_auroc"] == [(3, 10.0)]


def test_a_resumed_run_tells_each_round_once() -> None:
    pytest.importorskip("tensorboard")
    run = fl.run(FIELDS, track="tensorboard", out="cut", checkpoint_seconds=0)
    (run.path / "summary.json").unlink()
    max((run.path / "checkpoints").glob("*.safetensors")).unlink()
    fl.run(resume="cut")
    assert [step for step, _ in events(run.path)["train_loss"]] == [1, 2, 3]


@pytest.mark.slow
def test_mlflow_is_told_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = fl.run(FIELDS, track="mlflow", out="runs/told")
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{Path('runs/mlflow.db').resolve()}")
    number = Path("runs/told/mlflow.txt").read_text().strip()
    for name in NAMES:
        history = sorted((m.step, m.value) for m in client.get_metric_history(number, name))
        assert [step for step, _ in history] == [1, 2, 3]
        assert [value for _, value in history] == pytest.approx([line[name] for line in run.rounds])
    kept = client.get_run(number)
    assert kept.info.status == "FINISHED"
    assert kept.data.params["data.name"] == "digits"
    assert kept.data.metrics["final/test_accuracy"] == pytest.approx(run.summary["test_accuracy"])


@pytest.mark.slow
def test_wandb_is_told_every_round_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = fl.run(FIELDS, track="wandb", out="told")
    files = list(Path("told/wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 1
    content = files[0].read_bytes()
    assert all(name.encode() in content for name in NAMES)
    assert str(run.rounds[-1]["train_loss"]).encode() in content


def test_an_unknown_or_missing_tracker_is_refused_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(fl.FedloomError, match="track: 'tensorbord' is unknown; allowed are tensorboard, mlflow, wandb"):
        fl.run(FIELDS, track="tensorbord", out="x")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(fl.FedloomError, match="track: wandb is not installed; install it with: pip install"):
        fl.run(FIELDS, track="tensorboard,wandb", out="x")
    assert not Path("x").exists()


def test_a_tracker_that_fails_is_told_about_and_the_run_goes_on() -> None:
    pytest.importorskip("tensorboard")

    class Hears(RunCallback):
        def __init__(self) -> None:
            self.notes: list[str] = []

        def run_started(self, experiment: Any, folder: Path, done: int) -> None:
            (folder / "tensorboard").write_text("a file where the tracker wants a folder")

        def note(self, text: str) -> None:
            self.notes.append(text)

    watcher = Hears()
    run = fl.run(FIELDS, track="tensorboard", out="x", callbacks=[watcher])
    assert run.summary["rounds"] == 3
    assert len([text for text in watcher.notes if text.startswith("tracking with tensorboard")]) == 1


def test_nested_numbers_are_told_by_path() -> None:
    given = {"a": 1, "b": {"c": 0.5, "d": [1, 2]}, "e": "text", "f": None, "g": True}
    assert flatten(given) == {"a": 1.0, "b/c": 0.5, "b/d/0": 1.0, "b/d/1": 2.0}
