"""Run folders: what is in them, how they come into being, how they are carried on and read again."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

import fedloom as fl
from fedloom.data import load
from fedloom.io.digest import digest

FIELDS = {"clients": 10, "fraction": 0.3, "rounds": 3, "workers": 1, "eval_every": 0}


def tree(path: Path) -> dict[str, bytes]:
    return {str(found.relative_to(path)): found.read_bytes() for found in path.rglob("*") if found.is_file()}


def images(path: str, seed: int = 0, classes: int = 5, side: int = 4) -> None:
    generator = np.random.Generator(np.random.PCG64(seed))
    x = generator.integers(0, 256, (120, side, side, 1), dtype=np.uint8)
    y = np.arange(120) % classes
    np.savez(path, train_x=x[:100], train_y=y[:100], test_x=x[100:], test_y=y[100:])


def test_a_folder_holds_what_its_names_say() -> None:
    run = fl.run(FIELDS, method="scaffold + fn", eval_every=1, eval_clients=2, out="deep/x")
    assert run.path == Path("deep/x")
    assert {path.name for path in run.path.iterdir()} == {
        "recipe.yaml",
        "initial.safetensors",
        "final.safetensors",
        "partition.npz",
        "inputs.json",
        "labels.npz",
        "rounds.jsonl",
        "clients.jsonl",
        "summary.json",
        "checkpoints",
    }
    for line in run.rounds:
        wanted = {"round", "cohort", "lr", "train_loss", "test_accuracy", "seconds", "bytes_down", "bytes_up", "lost"}
        assert wanted <= line.keys()
    assert [line["round"] for line in run.clients] == [2, 3]
    assert all(len(line["accuracy"]) == 10 for line in run.clients)
    assert ("client_accuracy" in run.rounds[0], "client_accuracy" in run.rounds[1]) == (False, True)
    summary = run.summary
    assert summary["test_accuracy"] == run.rounds[-1]["test_accuracy"]
    assert (summary["method"], summary["rounds"], summary["lost"]) == ("scaffold + fn", 3, 0)
    assert summary["versions"]["torch"] == torch.__version__
    assert summary["machine"]["cores"] == os.cpu_count()
    assert summary["digest"] == digest(load_file(run.path / "final.safetensors")) == digest(run.weights)
    assert set(run.weights) == {"body.1.weight", "body.1.bias", "head.weight"}


def test_the_partition_is_plain_arrays_that_cover_every_image_once() -> None:
    run = fl.run(FIELDS)
    with np.load(run.path / "partition.npz", allow_pickle=False) as file:
        assert set(file.files) == {"train_index", "train_offsets", "test_index", "test_offsets"}
        index, offsets = file["train_index"], file["train_offsets"]
    assert sorted(index.tolist()) == list(range(1437))
    assert len(offsets) == 11
    labels = load("digits").train_y.numpy()
    for client in range(10):
        assert len(set(labels[index[offsets[client] : offsets[client + 1]]])) <= 2  # shards:2


def test_evaluations_come_when_they_are_due_and_after_the_last_round() -> None:
    run = fl.run(FIELDS, rounds=5, eval_every=2)
    assert ["test_accuracy" in line for line in run.rounds] == [False, True, False, True, True]
    assert ["test_accuracy" in line for line in fl.run(FIELDS).rounds] == [False, False, True]


def test_testing_more_often_does_not_change_the_result() -> None:
    often = fl.run(FIELDS, method="fedper", eval_every=1, eval_clients=1)
    assert often.summary["digest"] == fl.run(FIELDS, method="fedper").summary["digest"]


def test_the_stored_recipe_is_complete_and_runs_again_to_the_same_bits() -> None:
    run = fl.run(FIELDS, method="scaffold + prox", data={"name": "digits", "normalize": "none"}, name="first")
    stored = yaml.safe_load((run.path / "recipe.yaml").read_text())
    assert set(stored) == set(fl.Recipe.model_fields)
    assert stored["out"] == "runs/first"
    assert "prox(mu=" in stored["method"]  # hyper-parameters are written out
    again = fl.run("runs/first/recipe.yaml", out="runs/second", name="second")
    assert again.summary["digest"] == run.summary["digest"]
    assert again.summary["recipe_digest"] == run.summary["recipe_digest"]
    assert fl.run(run.recipe, out="third", lr=0.2).summary["digest"] != run.summary["digest"]


def test_methods_may_be_given_as_values() -> None:
    from fedloom.methods.prox import Prox
    from fedloom.methods.scaffold import Scaffold

    text = fl.run(FIELDS, method="scaffold + prox(mu=0.1)")
    assert fl.run(FIELDS, method=Scaffold() + Prox(mu=0.1)).summary["digest"] == text.summary["digest"]
    assert fl.run(FIELDS, method=Scaffold()).summary["method"] == "scaffold"


@pytest.mark.parametrize("kind", ["another run", "a folder with something in it", "a file"])
def test_a_place_that_is_taken_is_refused_and_left_as_it_is(kind: str) -> None:
    place = Path("taken")
    if kind == "another run":
        fl.run(FIELDS, lr=0.2, out="taken")
    elif kind == "a file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "thesis.tex").write_text("mine")
    before, beside = tree(Path()), sorted(Path().iterdir())
    with pytest.raises(fl.FedloomError, match=r"out: taken .* choose another"):
        fl.run(FIELDS, out="taken")
    assert tree(Path()) == before
    assert sorted(Path().iterdir()) == beside


def test_an_empty_folder_is_no_obstacle() -> None:
    Path("empty").mkdir()
    assert fl.run(FIELDS, out="empty").summary["rounds"] == 3


@pytest.mark.parametrize("out", ["file/x", "/proc/nobody/x"])
def test_a_place_that_cannot_be_written_is_told(out: str) -> None:
    Path("file").touch()
    with pytest.raises(fl.FedloomError, match=f"out: {out} cannot be written"):
        fl.run(FIELDS, out=out)


@pytest.mark.parametrize(
    "fields",
    [
        {"lr": -1},
        {"method": "scafold"},
        {"method": "scaffold + scaffold"},
        {"model": "mpl"},
        {"model": "nowhere.py:net"},
        {"split": "shard:2"},
        {"data": "nowhere"},
        {"data": {"name": "digits", "validation": 0.9999}},
        {"clients": 100_000},
        {"method": "babu", "model": "linear"},
        {"parts": ["nowhere.py"]},
        {"device": "abacus"},
    ],
    ids=lambda fields: "-".join(f"{k}={v}" for k, v in fields.items()),
)
def test_a_recipe_with_an_error_writes_nothing(fields: dict[str, Any]) -> None:
    with pytest.raises(fl.FedloomError):
        fl.run({**FIELDS, **fields})
    assert list(Path().iterdir()) == []


def test_runs_without_a_name_do_not_collide() -> None:
    paths = [fl.run(FIELDS, rounds=1).path for _ in range(3)]
    assert len(set(paths)) == 3
    assert all(path.parent == Path("runs") for path in paths)
    assert all(word in paths[0].name for word in ("fedavg", "digits", "shards-2", "mlp", "seed0"))
    assert [fl.Run(path).recipe.name for path in paths] == [path.name for path in paths]


def test_runs_without_a_name_that_start_at_the_same_time_do_not_collide() -> None:
    ready, go = os.pipe()
    children = []
    for _ in range(6):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(go)
                os.read(ready, 1)  # all begin when the other end is closed
                fl.run(FIELDS, rounds=1)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    os.close(go)
    os.close(ready)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * 6
    folders = list(Path("runs").iterdir())
    assert len(folders) == 6
    assert len({fl.Run(path).summary["digest"] for path in folders}) == 1


def test_a_hidden_folder_is_a_place_like_any_other() -> None:
    assert fl.run(FIELDS, out=".hidden").recipe.name == "hidden"


def test_resuming_a_finished_run_returns_at_once_and_changes_nothing() -> None:
    run = fl.run(FIELDS, method="fedper")
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    shutil.rmtree(run.path / "checkpoints")  # not even looked at
    again = fl.run(resume=run.path)
    assert again == run
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}.items() <= before.items()


def test_a_run_may_be_resumed_with_another_number_of_lanes() -> None:
    run = fl.run(FIELDS, method="scaffold")
    for name in ("summary.json", "final.safetensors"):
        (run.path / name).unlink()
    shutil.rmtree(run.path / "checkpoints")
    (run.path / "checkpoints" / "clients").mkdir(parents=True)
    again = fl.run(resume=run.path, workers=3)
    assert again.summary["workers"] == 3
    assert again.summary["digest"] == fl.run(FIELDS, method="scaffold").summary["digest"]


def test_what_is_no_run_folder_cannot_be_resumed() -> None:
    Path("other").mkdir()
    for place in ("other", "nowhere"):
        with pytest.raises(fl.FedloomError, match=f"{place} is not a run folder: it has no recipe.yaml"):
            fl.run(resume=place)


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"classes": 4}, {"side": 5}, None], ids=["pixels", "classes", "size", "gone"]
)
def test_changed_data_are_refused(change: dict[str, int] | None) -> None:
    images("mine.npz")
    run = fl.run(FIELDS, data="mine.npz", split="iid", out="x")
    (run.path / "summary.json").unlink()
    time.sleep(0.01)  # the cache tells files apart by size and time
    if change is None:
        Path("mine.npz").unlink()
    else:
        images("mine.npz", **change)
    with pytest.raises(
        fl.FedloomError,
        match=r"^data.*mine\.npz'? (is no longer what x was trained on|does not exist)",
    ):
        fl.run(resume="x")
    images("mine.npz")
    assert fl.run(resume="x").summary["rounds"] == 3  # as it was: all is well again


def test_a_changed_recipe_is_not_carried_on() -> None:
    run = fl.run(FIELDS, out="x")
    (run.path / "summary.json").unlink()
    text = (run.path / "recipe.yaml").read_text()
    (run.path / "recipe.yaml").write_text(text.replace("clients: 10", "clients: 5"))
    with pytest.raises(fl.FedloomError, match=r"x/recipe.yaml is no longer the recipe of this run"):
        fl.run(resume="x")
    (run.path / "recipe.yaml").write_text(text.replace("workers: 1", "workers: 2"))
    assert fl.run(resume="x").summary["workers"] == 2


@pytest.mark.parametrize("name", ["initial.safetensors", "partition.npz", "recipe.yaml"])
def test_a_damaged_folder_is_told(name: str) -> None:
    run = fl.run(FIELDS, out="x")
    (run.path / "summary.json").unlink()
    (run.path / name).write_bytes((run.path / name).read_bytes()[:60])
    with pytest.raises(fl.FedloomError, match=name):
        fl.run(resume="x")


def test_a_kill_between_the_last_checkpoint_and_the_summary_is_made_good() -> None:
    run = fl.run(FIELDS, method="fedper")
    before = tree(run.path)
    for name in ("summary.json", "final.safetensors"):
        (run.path / name).unlink()
    fl.run(resume=run.path)
    after = tree(run.path)
    assert after.keys() == before.keys()
    assert [name for name in before if before[name] != after[name]] in ([], ["final.safetensors"])  # its header's order
    assert json.loads(after["summary.json"]) == json.loads(before["summary.json"])
    assert digest(run.weights) == run.summary["digest"]


def test_images_held_back_for_validation_are_in_no_client() -> None:
    run = fl.run(FIELDS, data={"name": "digits", "validation": 0.2}, rounds=2, eval_every=1)
    with np.load(run.path / "partition.npz") as file:
        dealt = file["train_index"]
    held = round(0.2 * 1437)
    assert len(dealt) == len(set(dealt.tolist())) == 1437 - held
    assert all(0 <= line["validation_accuracy"] <= 1 for line in run.rounds)
    # recomputed: the last model on exactly the images that nobody holds
    rest = np.setdiff1d(np.arange(1437), dealt)
    assert len(rest) == held
    data = load("digits")
    x = (data.train_x[rest].double() / 16 - data.mean[0]) / data.std[0]
    w = {name: tensor.double() for name, tensor in run.weights.items()}
    hidden = (x.reshape(held, -1) @ w["body.1.weight"].T + w["body.1.bias"]).clamp(min=0)
    hits = (hidden @ w["head.weight"].T + w["head.bias"]).argmax(1) == data.train_y[rest]
    assert run.rounds[-1]["validation_accuracy"] == pytest.approx(hits.double().mean().item(), abs=1e-12)


def test_the_best_round_is_chosen_by_validation_and_not_by_test() -> None:
    differ = 0
    for seed in (2, 3, 4):
        run = fl.run(data={"name": "digits", "validation": 0.05}, fraction=0.1, rounds=8, workers=1, seed=seed)
        best = run.summary["best_by_validation"]
        by_validation = [line["validation_accuracy"] for line in run.rounds]
        by_test = [line["test_accuracy"] for line in run.rounds]
        assert best["round"] == 1 + by_validation.index(max(by_validation))
        assert best["test_accuracy"] == by_test[best["round"] - 1]
        assert run.summary["test_accuracy"] == by_test[-1]  # the headline is the last round
        differ += best["test_accuracy"] < max(by_test)
    assert differ  # else test accuracy would have chosen the same rounds


def test_without_validation_there_is_no_best_round() -> None:
    assert "best_by_validation" not in fl.run(FIELDS, eval_every=1).summary


def test_tensors_are_read_without_pickle_by_any_other_tool() -> None:
    run = fl.run(FIELDS)
    for name in ("initial", "final"):
        with safe_open(run.path / f"{name}.safetensors", "np") as file:
            assert file.metadata()["recipe"] == run.recipe.digest()
            assert file.get_tensor("head.weight").shape == (10, 64)


def test_resume_takes_its_recipe_from_the_folder_and_from_nowhere_else() -> None:
    with pytest.raises(fl.FedloomError, match="leave out rounds"):
        fl.run(resume="anywhere", rounds=3)
