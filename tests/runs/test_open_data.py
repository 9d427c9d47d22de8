"""Runs on tables, signals, tokens and objects in memory: natural clients, same bits, kill and resume, adopt, notes."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from folders import check_whole, logged, untimed
from processes import Child, until

import fedloom as fl
from fedloom.data import load
from fedloom.engine.experiment import prepare
from fedloom.engine.server.callback import RunCallback
from fedloom.recipe import recipe
from fedloom.runs.folder import create
from fedloom.runs.run import federation, go

pytestmark = pytest.mark.slow  # whole runs on data of every kind

HOSPITALS = ("city", "east", "north", "south", "west")


def patients(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": draw.normal(60, 10, rows),
            "bmi": draw.normal(27, 4, rows),
            "smoker": draw.choice(["yes", "no", "former"], rows),
            "hospital": draw.choice(HOSPITALS, rows, p=[0.5, 0.3, 0.1, 0.08, 0.02]),
        }
    )
    risk = 0.1 * (frame["age"] - 60) + 0.3 * (frame["bmi"] - 27) + (frame["smoker"] == "yes")
    frame["outcome"] = np.where(risk + draw.logistic(size=rows) > 0, "ill", "well")
    frame.loc[draw.random(rows) < 0.1, "bmi"] = np.nan
    return frame


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The fields of a recipe for each kind of data."""
    folder, draw = tmp_path_factory.mktemp("kinds"), np.random.default_rng(0)
    patients().to_csv(folder / "patients.csv", index=False)
    y = np.arange(300) % 3
    steps = np.linspace(0, 6, 24)
    signals = np.sin(steps * (1 + y[:, None, None])) + draw.normal(0, 0.5, (300, 2, 24))
    np.savez(
        folder / "signals.npz",
        x=signals.astype(np.float32),
        y=y,
        client=np.array(HOSPITALS)[draw.integers(5, size=300)],
    )
    tokens = np.where(draw.random((300, 10)) < 0.3, 5 + y[:, None], draw.integers(8, 30, (300, 10)))
    np.savez(folder / "tokens.npz", x=tokens, y=y, client=np.array(HOSPITALS)[draw.integers(5, size=300)])
    small = {"rounds": 6, "fraction": 0.6, "lr": 0.05, "workers": 2}
    return {
        "table": {**small, "data": f"table:{folder}/patients.csv?target=outcome&client=hospital"},
        "signals": {**small, "data": str(folder / "signals.npz"), "model": "mlp"},
        "tokens": {**small, "data": str(folder / "tokens.npz"), "model": "lstm"},
    }


KINDS = ("table", "signals", "tokens")


@pytest.mark.parametrize("kind", KINDS)
def test_one_and_two_workers_and_fresh_processes_give_the_same_bits(
    kind: str, files: dict[str, dict[str, Any]]
) -> None:
    fields = {**files[kind], "rounds": 2, "method": "scaffold"}
    runs = [fl.run({**fields, "workers": workers, "out": f"workers-{workers}"}) for workers in (1, 2)]
    assert len({run.summary["digest"] for run in runs}) == 1
    assert untimed(runs[0].rounds) == untimed(runs[1].rounds)
    experiment = prepare(recipe({**runs[0].recipe.model_dump(), "workers": 2, "out": "spawned"}))
    spawned = go(experiment, create(experiment, Path("spawned")), RunCallback(), partial(federation, spawned=True))
    assert spawned.summary["digest"] == runs[0].summary["digest"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_again_and_again_resumes_to_the_same_bits(
    kind: str, files: dict[str, dict[str, Any]], straight: Callable[..., fl.Run]
) -> None:
    fields = {**files[kind], "method": "scaffold", "checkpoint_seconds": 0}
    path, draw = Path("killed"), random.Random(kind)
    for moment in (1, 3):
        child = Child(lambda: fl.run(resume=path) if path.exists() else fl.run(fields, out=str(path)))
        until(lambda moment=moment: logged(path) >= moment)
        time.sleep(draw.uniform(0, 0.03))
        child.signal(signal.SIGKILL)
        child.wait()
    check_whole(fl.run(resume=path), straight(**{**fields, "checkpoint_seconds": 15}))


def test_data_that_name_their_clients_decide_split_and_clients(files: dict[str, dict[str, Any]]) -> None:
    table = {**files["table"], "rounds": 1}
    run = fl.run(table, out="run")
    assert (run.recipe.split, run.recipe.clients) == ("natural", 5)
    given = fl.run({**table, "split": "iid", "clients": 7}, out="given")
    assert (given.recipe.split, given.recipe.clients) == ("iid", 7)
    assert fl.run({**table, "split": "natural"}, out="natural").recipe.clients == 5
    assert fl.run({**table, "clients": 3}, out="three").recipe.split == "shards:2"
    compared = fl.compare("fedavg; fn", 1, **{**table, "out": "compared"})
    assert {result.run.recipe.split for result in compared.results} == {"natural"}
    swept = fl.sweep({"data": [table["data"], "digits"]}, **{**table, "out": "swept"})
    assert [(r.run.recipe.split, r.run.recipe.clients) for r in swept.results] == [("natural", 5), ("shards:2", 20)]
    split = fl.split(data=table["data"])
    frame = patients()
    train = np.arange(400) % 5 != 0
    sizes = [int((frame["hospital"][train] == name).sum()) for name in HOSPITALS]
    assert np.diff(split.partition.train_offsets).tolist() == sizes


def test_a_client_with_fewer_rows_than_a_batch_trains(files: dict[str, dict[str, Any]]) -> None:
    run = fl.run({**files["table"], "rounds": 2, "fraction": 1.0, "batch": 64}, out="run")
    sizes = np.diff(np.load("run/partition.npz")["train_offsets"])
    assert sizes.min() < 16 and run.summary["lost"] == 0


def test_notes_on_the_data_are_reported_once_and_stored(files: dict[str, dict[str, Any]]) -> None:
    class Notes(RunCallback):
        texts: list[str] = []  # noqa: RUF012

        def note(self, text: str) -> None:
            self.texts.append(text)

    run = fl.run({**files["table"], "rounds": 1}, out="run", callbacks=[Notes()])
    noted = [text for text in Notes.texts if text.startswith("data: ")]
    assert [text.removeprefix("data: ") for text in noted] == run.summary["data_notes"]
    assert any("missing numbers, filled with the training median: bmi in" in text for text in noted)
    columns = json.loads(Path("run/schema.json").read_text())["columns"]
    assert [column["name"] for column in columns] == ["age", "bmi", "smoker"]


def test_a_new_client_is_prepared_by_the_schema_of_the_run(files: dict[str, dict[str, Any]]) -> None:
    fl.run({**files["table"], "rounds": 10}, out="run")
    new = patients(200, seed=1).drop(columns="hospital")
    new["smoker"] = "pipe"  # no client of the run has it
    new.to_csv("new.csv", index=False)
    adopted = fl.adopt("run", "table:new.csv", epochs=3, lr=0.01)
    assert adopted.after is not None and adopted.after > 0.6
    assert any("categories that no training row has" in note and "pipe" in note for note in adopted.notes)
    again = fl.adopt(
        "run", fl.Dataset.from_frame(new, schema="run/schema.json"), epochs=3, lr=0.01, out="again.safetensors"
    )
    assert again.curve == adopted.curve
    with pytest.raises(fl.FedloomError, match="prepared by another schema than the run's"):
        fl.adopt("run", fl.Dataset.from_frame(patients(200, seed=1), "outcome", drop=["hospital"]))
    with pytest.raises(fl.FedloomError, match="the column 'bmi' of the schema is missing"):
        new.drop(columns="bmi").to_csv("less.csv", index=False)
        fl.adopt("run", "table:less.csv")


@pytest.mark.parametrize("kind", ["signals", "tokens"])
def test_new_clients_bring_signals_and_tokens(kind: str, files: dict[str, dict[str, Any]]) -> None:
    fl.run({**files[kind], "rounds": 1}, out="run")
    arrays = dict(np.load(files[kind]["data"]))
    np.savez("new.npz", x=arrays["x"][:60], y=arrays["y"][:60])
    assert fl.adopt("run", "new.npz", epochs=1).test == 12
    np.savez("longer.npz", x=np.repeat(arrays["x"][:60], 2, axis=-1), y=arrays["y"][:60])
    with pytest.raises(
        fl.FedloomError, match=r"the run was trained on (features of shape 2x24|sequences of 10 tokens)"
    ):
        fl.adopt("run", "longer.npz")
    if kind == "tokens":
        np.savez("more.npz", x=arrays["x"][:60] + 20, y=arrays["y"][:60])
        with pytest.raises(fl.FedloomError, match=r"a token is \d+; the run was trained on the tokens 0 to 29"):
            fl.adopt("run", "more.npz")


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_reads_a_run_works_for_every_kind(kind: str, files: dict[str, dict[str, Any]]) -> None:
    fields = {**files[kind], "data": {"name": files[kind]["data"], "validation": 0.1, "public": 0.1}, "rounds": 2}
    run = fl.run({**fields, "method": "feddf"}, out="run")
    assert run.summary["best_by_validation"]["round"] in (1, 2)
    assert fl.personalize("run", epochs=1).headline.metric == "accuracy"
    assert fl.analyze("run", what="factors,norms,drift,alignment").path.exists()
    picture = fl.split(source="run")
    assert picture.strength() and picture.clients == 5
    x, y = picture.samples(0)
    assert len(x) == len(y) > 0
    assert fl.report("run", "page.html")[0].exists()


def test_an_object_in_memory_is_run_resumed_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 6))
    mine = fl.Dataset.from_arrays(x, (x[:, 0] > 0).astype(int), client=draw.choice(["a", "b", "c"], 200), name="mine")
    run = fl.run(data=mine, rounds=3, out="run")
    assert run.recipe.data.name == mine.source and (run.recipe.split, run.recipe.clients) == ("natural", 3)
    Path("run/summary.json").unlink()
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(
        fl.FedloomError, match=r"the cache no longer holds this object .* fl\.run\(resume=FOLDER, data="
    ):
        fl.run(resume="run")
    with pytest.raises(fl.FedloomError, match=r"was trained on memory:mine-.* pass the run's own data"):
        fl.run(resume="run", data="digits")
    again = fl.Dataset.from_arrays(
        x, (x[:, 0] > 0).astype(int), client=np.random.default_rng(0).choice(["a"], 200), name="mine"
    )
    with pytest.raises(fl.FedloomError, match="pass the run's own data"):
        fl.run(resume="run", data=again)
    labels = [mine.client_names[int(k)] for k in _whole(mine)]
    same = fl.Dataset.from_arrays(x, (x[:, 0] > 0).astype(int), client=labels, name="mine")
    assert fl.run(resume="run", data=same).summary["digest"] == run.summary["digest"]
    assert fl.personalize("run", epochs=1).headline.metric == "accuracy"
    compared = fl.compare("fedavg; fn", 1, data=same, rounds=1, out="compared")
    assert len(compared.results) == 2 and not compared.failures


def _whole(dataset: fl.Dataset) -> np.ndarray:
    """Clients of all samples, in the order in which they were given."""
    assert dataset.train_client is not None and dataset.test_client is not None
    clients = np.empty(len(dataset.train_client) + len(dataset.test_client), np.int64)
    held = np.arange(len(clients)) % 5 == 0
    clients[~held], clients[held] = dataset.train_client.numpy(), dataset.test_client.numpy()
    return clients


@pytest.mark.parametrize("kind", ["table", "signals"])
def test_clients_with_features_train_in_one_computation(kind: str, files: dict[str, dict[str, Any]]) -> None:
    fields = {**files[kind], "rounds": 2, "fraction": 1.0, "workers": 1}
    eager, vmapped = fl.run(fields, out="eager"), fl.run({**fields, "vmap": 5}, out="vmapped")
    for name, weights in eager.weights.items():
        assert np.allclose(weights.numpy(), vmapped.weights[name].numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", ["table", "signals"])
def test_models_of_features_are_exported(kind: str, files: dict[str, dict[str, Any]]) -> None:
    run = fl.run({**files[kind], "rounds": 2}, out="run")
    fl.export("run", "model.pt2")
    dataset = load(run.recipe.data.name)
    logits = torch.export.load("model.pt2").module()(dataset.test_x)
    accuracy = float((logits.argmax(1) == dataset.test_y).float().mean())
    assert accuracy == pytest.approx(run.summary["test_accuracy"])
