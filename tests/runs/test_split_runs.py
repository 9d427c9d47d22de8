"""Runs on splits that change images, labels and holders: recomputed from the files, same bits, every method alike."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

import fedloom as fl
from fedloom.cli.main import main
from fedloom.rng import numpy_generator
from fedloom.runs.folder import RunFolder

SMALL = {"clients": 5, "fraction": 0.6, "rounds": 2, "workers": 2, "eval_every": 0}
Array = NDArray[Any]


def digits() -> tuple[Array, Array, float, float]:
    """Test images with values 0 to 1, their classes, and what they are normalized by."""
    known = load_digits()
    test = np.arange(len(known.target)) % 5 == 0
    train = known.images[~test] / 16
    return known.images[test] / 16, known.target[test], train.mean(), train.std()


def right(run: fl.Run, x: Array, y: Array) -> Array:
    """Objective images the final net, one hidden layer, gets right."""
    _, _, mean, std = digits()
    w = {name: value.astype(np.float64) for name, value in load_file(run.path / "final.safetensors").items()}
    z = ((x - mean) / std).reshape(len(x), -1) @ w["body.1.weight"].T + w["body.1.bias"]
    return np.asarray((np.maximum(z, 0) @ w["head.weight"].T + w["head.bias"]).argmax(1) == y)


def own_tests(path: Path) -> list[Array]:
    with np.load(path) as file:
        return np.split(file["test_index"], file["test_offsets"][1:-1])


def untimed(run: fl.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if "seconds" not in k} for line in run.rounds]


@pytest.mark.parametrize("owner", ["iid", "dirichlet:1"])
def test_accuracies_under_noise_are_those_of_noisy_test_images(owner: str) -> None:
    run = fl.run(SMALL, split=f"{owner}+noise:0.5", seed=3)
    x, y, _, _ = digits()
    held = own_tests(run.path / "partition.npz")
    assert run.summary["clean_test_accuracy"] == right(run, x, y).mean()

    def noisy(client: int, index: Array) -> Array:
        draws = [numpy_generator(3, "split", "noise", "test", client, int(i)).standard_normal((8, 8)) for i in index]
        return np.asarray(x[index] + 0.5 * client / 4 * np.stack(draws))

    own = [right(run, noisy(client, index), y[index]).mean() for client, index in enumerate(held)]
    assert run.clients[-1]["accuracy"] == pytest.approx(own, abs=0.011)  # half precision may tip an image
    if owner == "iid":  # each test sample has one holder
        hits = np.concatenate([right(run, noisy(client, index), y[index]) for client, index in enumerate(held)])
        assert run.summary["test_accuracy"] == pytest.approx(hits.mean(), abs=0.006)
    assert run.summary["test_accuracy"] < run.summary["clean_test_accuracy"]


def test_training_sees_the_changed_images() -> None:
    plain, turned, relabeled = (fl.run(SMALL, split=f"iid{more}") for more in ("", "+rotate", "+permute:1"))
    assert len({run.summary["digest"] for run in (plain, turned, relabeled)}) == 3
    assert "clean_test_accuracy" not in plain.summary


@pytest.mark.parametrize(
    "fields",
    [
        {"split": "dirichlet:0.5+noise:0.3+permute:0.5; 2: shards:2; 3: rotate"},
        {"split": "corrupt:3; 3: color", "data": "colored.npz", "augment": "crop+flip", "model": "cnn"},
        {"split": "noise:0.2; 2: same", "augment": "crop+flip", "method": "scaffold"},
    ],
    ids=["stages", "corrupt", "augment"],
)
def test_lanes_do_not_change_the_bits(fields: dict[str, Any]) -> None:
    random = numpy_generator(0, "colored")
    np.savez("colored.npz", x=random.integers(0, 256, (250, 12, 12, 3), dtype=np.uint8), y=np.arange(250) % 4)
    given = {**SMALL, "rounds": 3, "eval_every": 1, **fields}
    runs = [fl.run(given, workers=workers, name=f"workers-{workers}") for workers in (1, 3)]
    assert runs[0].summary["digest"] == runs[1].summary["digest"]
    assert untimed(runs[0]) == untimed(runs[1])
    assert runs[0].clients == runs[1].clients


def test_the_split_of_a_sum_is_the_same_for_every_method_and_order() -> None:
    specs = ("dirichlet:0.5+noise:0.1; 2: shards:2", "noise:0.1+dirichlet:0.5;2:shards:2")
    runs = [fl.run(SMALL, split=spec, method=method) for spec in specs for method in ("fedavg", "scaffold", "fedper")]
    for name in ("partition.npz", "partition-2.npz"):
        stored = [np.load(run.path / name) for run in runs]
        assert all(np.array_equal(other[key], stored[0][key]) for other in stored for key in other.files)
    assert runs[0].summary["digest"] == runs[3].summary["digest"]
    assert runs[0].recipe == runs[3].recipe.changed(name=runs[0].recipe.name, out=runs[0].recipe.out)


def test_a_round_trains_and_tests_on_what_is_held_then() -> None:
    run = fl.run(SMALL, split="shards:4; 2: shards:2", fraction=1.0, eval_clients=1)
    first = fl.run(SMALL, split="shards:4", fraction=1.0, rounds=1)
    assert run.rounds[0]["train_loss"] == first.rounds[0]["train_loss"]
    assert run.clients[0]["accuracy"] == first.clients[0]["accuracy"]
    x, y, _, _ = digits()
    own = [right(run, x[index], y[index]).mean() for index in own_tests(run.path / "partition-2.npz")]
    assert run.clients[1]["accuracy"] == pytest.approx(own)
    assert len({len(set(y[index].tolist())) for index in own_tests(run.path / "partition.npz")} - {1, 2}) > 0
    assert all(len(set(y[index].tolist())) <= 2 for index in own_tests(run.path / "partition-2.npz"))


def test_a_split_that_changes_after_the_last_round_is_refused() -> None:
    with pytest.raises(fl.FedloomError, match="split changes in round 3, but there are 2 rounds"):
        fl.run(SMALL, split="iid; 3: shards:2")


def test_killed_in_the_middle_a_changing_split_ends_in_the_same_bits(tmp_path: Path) -> None:
    fields = {
        **SMALL,
        "rounds": 6,
        "split": "dirichlet:0.5+noise:0.3; 3: shards:2+rotate; 5: noise:0.5",
        "eval_every": 1,
    }
    whole = fl.run(fields, name="whole", method="scaffold")
    code = f"""
import os, signal, fedloom as fl
from fedloom import (RunCallback)
class Killer(RunCallback):
    def round_ended(self, line):
        if line["round"] == 4:
            os.kill(os.getpid(), signal.SIGKILL)
fl.run({fields!r}, name="killed", method="scaffold", checkpoint_seconds=0, callbacks=[Killer()])
"""
    ended = subprocess.run([sys.executable, "-c", code], env=os.environ, timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL
    time.sleep(0.2)
    killed = fl.run(resume="runs/killed")
    assert killed.summary["digest"] == whole.summary["digest"]
    assert untimed(killed) == untimed(whole)
    assert killed.clients == whole.clients


def domains(path: str) -> tuple[Array, Array, Array]:
    """Digits in three domains that differ in brightness."""
    known = load_digits()
    domain = np.arange(1797) % 3
    x = (known.images * 16 * (1 - 0.3 * domain[:, None, None])).clip(0, 255).astype(np.uint8)
    np.savez(path, x=x, y=known.target, domain=domain, domain_names=np.array(["day", "dusk", "night"]))
    test = np.arange(1797) % 5 == 0
    return x[test], known.target[test], domain[test]


@pytest.mark.parametrize("split", ["domains", "domains+rotate:30"])
def test_accuracy_by_domain_is_in_rounds_and_summary(split: str) -> None:
    _, _, domain = domains("three.npz")
    run = fl.run(SMALL, data="three.npz", split=split, clients=3, eval_every=1)
    found = run.summary["domain_accuracy"]
    assert list(found) == ["day", "dusk", "night"]
    assert run.rounds[-1]["domain_accuracy"] == found
    assert "domain_accuracy" in run.rounds[0]
    shares = np.bincount(domain) / len(domain)
    assert sum(shares * list(found.values())) == pytest.approx(run.summary["test_accuracy"])
    assert list(found.values()) == pytest.approx(run.clients[-1]["accuracy"])  # client k is domain k


@pytest.mark.parametrize("method", ["scaffold", "fedbn", "fnr", "feddc", "fedrep"])
def test_methods_work_on_domains_that_turn(method: str) -> None:
    domains("three.npz")
    model = "conv4" if method == "fedbn" else "cnn"
    data = {"name": "three.npz", "resize": 16} if method == "fedbn" else "three.npz"
    fields = {**SMALL, "data": data, "split": "domains+rotate; 2: noise:0.2", "clients": 3, "model": model}
    run = fl.run(fields, method=method, rounds=2, lr=0.01)
    assert np.isfinite(run.rounds[-1]["train_loss"])
    fl.personalize(run, epochs=1)


def test_writers_with_noise_work_with_a_validation_part() -> None:
    known = load_digits()
    np.savez("written.npz", x=(known.images * 15).astype(np.uint8), y=known.target, writer=np.arange(1797) % 9)
    data = {"name": "written.npz", "validation": 0.1}
    run = fl.run(SMALL, data=data, split="writers+noise:0.2", clients=7, method="fnr(mode=held)")
    assert run.summary["best_by_validation"]["round"] == 2
    with np.load(run.path / "partition.npz") as file:
        assert len(file["train_index"]) < 1797 * 0.8 * 0.9


def test_a_stored_split_can_be_run_and_its_file_may_go(tmp_path: Path) -> None:
    made = fl.split(SMALL, split="dirichlet:1", seed=4)
    made.save("mine.npz")
    run = fl.run(SMALL, split="file:mine.npz+noise:0.1", rounds=3)
    same = fl.run(SMALL, split="file:mine.npz", rounds=1)
    with np.load(same.path / "partition.npz") as file:
        assert np.array_equal(file["train_index"], made.partition.train_index)
    (run.path / "summary.json").unlink()
    Path("mine.npz").unlink()
    again = fl.run(resume=run.path)
    assert again.summary["digest"] == json.loads((run.path / "summary.json").read_text())["digest"]


def test_the_server_and_a_central_run_see_images_as_their_holders_do() -> None:
    for method in ("central", "server-data(share=0.5)"):
        plain, changed = (fl.run(SMALL, split=split, method=method) for split in ("shards:2", "shards:2+permute:1"))
        assert plain.summary["digest"] != changed.summary["digest"]
    experiment = RunFolder(changed.path).experiment()
    holding = experiment.data.at(1)
    index = holding.partition.train_index[::7]
    owner = np.repeat(np.arange(5), np.diff(holding.partition.train_offsets))[::7]
    for image, client, label in zip(index, owner, holding.by_index(index).y.tolist(), strict=True):
        own = holding.train(int(client))
        assert label == own.y[own.rows == int(image)].item()


def test_public_images_that_clients_hold_are_changed_like_their_own() -> None:
    data = {"name": "digits", "public": 0.1, "public_to_clients": True}
    run = fl.run(SMALL, data=data, split="iid+rotate; 2: same", clients=4)
    experiment = RunFolder(run.path).experiment()
    public = experiment.data.dataset.train_x.numpy()
    shared = set(experiment.data.at(1).partition.train(0)) & set(experiment.data.at(1).partition.train(2))
    assert len(shared) == 144
    image = next(iter(shared))
    for client in range(4):
        own = experiment.data.at(1).train(client)
        row = experiment.data.at(1).partition.train(client).tolist().index(image)
        seen = own.x[own.rows[row]].numpy()
        assert np.array_equal(seen, np.rot90(public[image], client).astype(np.float16))
    made = fl.split(run.recipe)
    assert np.array_equal(made.partition.train_index, experiment.data.at(1).partition.train_index)


def test_the_command_prints_a_table_of_domains(capsys: pytest.CaptureFixture[str]) -> None:
    domains("three.npz")
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "run",
                "--data",
                "three.npz",
                "--split",
                "domains+noise:0.1",
                "--clients",
                "3",
                "--rounds",
                "1",
                "--model",
                "linear",
            ]
        )
    assert ended.value.code == 0
    out = capsys.readouterr().out
    for words in ("by domain", "day", "dusk", "night", "mean of domains", "the same on unshifted samples"):
        assert words in out
