"""A named run that exists already: the same recipe is read or resumed, another one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom as fl

FIELDS: dict[str, Any] = {"model": "linear", "clients": 5, "rounds": 2, "workers": 1}


class Notes(fl.RunCallback):
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.rounds: list[int] = []

    def note(self, text: str) -> None:
        self.texts.append(text)

    def round_ended(self, line: dict[str, Any]) -> None:
        self.rounds.append(line["round"])


def stamps() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")}


def test_a_finished_named_run_is_returned_without_training() -> None:
    first = fl.run(FIELDS, name="x", method="prox")
    before, watcher = stamps(), Notes()
    again = fl.run(FIELDS, name="x", method="prox(mu=0.01)", workers=2, eval_every=2, callbacks=[watcher])
    assert (again.path, watcher.rounds, stamps()) == (first.path, [], before)
    assert watcher.texts == ["runs/x is finished and has the same recipe: this is its result"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lr": 0.2, "rounds": 3}, r"\(rounds was 2, and now is 3\)"),
        ({"method": "fn"}, r"\(method was 'fedavg', and now is 'fn.*'\)"),
        ({"data": {"name": "digits", "test_images": 50}}, r"\(data\.test_images was None, and now is 50\)"),
    ],
)
def test_another_recipe_is_refused_by_the_first_field_that_differs(change: dict[str, Any], said: str) -> None:
    fl.run(FIELDS, name="x")
    with pytest.raises(fl.FedloomError, match=f"out: runs/x holds a run of another recipe {said}; choose another"):
        fl.run({**FIELDS, **change}, name="x")


def test_a_metric_that_the_run_lacks_and_data_that_changed_are_refused() -> None:
    y = np.arange(60) % 3
    np.savez("mine.npz", x=np.random.default_rng(0).normal(size=(60, 4)), y=y)
    fields = {**FIELDS, "data": "mine.npz", "split": "iid"}
    fl.run(fields, name="x")
    with pytest.raises(fl.FedloomError, match="metrics: the run in runs/x has no macro_f1, only accuracy"):
        fl.run(fields, name="x", metrics=["accuracy", "macro_f1"])
    np.savez("mine.npz", x=np.random.default_rng(1).normal(size=(60, 4)), y=y)
    with pytest.raises(fl.FedloomError, match=r"data: mine\.npz is no longer what runs/x was trained on"):
        fl.run(fields, name="x")


def test_an_unfinished_named_run_says_how_to_resume_and_resumes_on_request() -> None:
    whole = fl.run(FIELDS, name="x", checkpoint_seconds=0)
    digest = whole.summary["digest"]
    (whole.path / "summary.json").unlink()
    with pytest.raises(
        fl.FedloomError, match=r"stopped after round 2 of 2; continue it with: fedloom run --resume runs/x"
    ):
        fl.run(FIELDS, name="x")
    assert fl.run(FIELDS, name="x", resume=True).summary["digest"] == digest


def test_a_new_name_for_a_stored_recipe_is_a_new_run() -> None:
    first = fl.run(FIELDS, name="x")
    for given in (first.recipe, first.path / "recipe.yaml"):
        assert fl.run(given, name="y").path == Path("runs/y")


def test_resume_starts_a_run_that_does_not_exist_yet() -> None:
    assert fl.run(FIELDS, name="x", resume=True).summary["rounds"] == 2


def test_paths_and_numbers_of_numpy_are_taken_as_fields() -> None:
    run = fl.run(FIELDS, out=Path("deep") / "x", rounds=np.int64(1), lr=np.float32(0.5))
    assert (run.path, run.recipe.rounds, run.recipe.lr) == (Path("deep/x"), 1, 0.5)
