"""Accuracies, recomputed from the files of a run with numpy alone."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

import fedloom as fl
from fedloom.evaluation.clients import evaluate_clients
from fedloom.evaluation.global_model import evaluate_global
from fedloom.evaluation.measure import summarize
from fedloom.finished.restore import restore_finished
from fedloom.runs.folder import RunFolder
from fedloom.runs.run import federation

FIELDS = {"clients": 10, "fraction": 0.3, "rounds": 3, "workers": 2, "eval_every": 0}
NORMALISED = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU()), nn.Linear(16, classes)
"""
Array = NDArray[np.float64]
Weights = dict[str, Array]


def digits() -> tuple[Array, NDArray[np.int64]]:
    """The test samples as the net sees them, and their classes."""
    known = load_digits()
    test = np.arange(len(known.target)) % 5 == 0
    train = known.images[~test] / 16
    return (known.images[test].reshape(-1, 64) / 16 - train.mean()) / train.std(), known.target[test]


def own_tests(run: fl.Run) -> list[NDArray[np.int64]]:
    """Every client's own test samples."""
    with np.load(run.path / "partition.npz") as file:
        return np.split(file["test_index"], file["test_offsets"][1:-1])


def hits(w: Weights, x: Array, y: NDArray[np.int64], batch: bool = False) -> NDArray[np.bool_]:
    """Objective images a net gets right. `batch`: they are normalized by their own statistics."""
    z = x @ w["body.1.weight"].T + w["body.1.bias"]
    if "body.2.weight" in w:
        mean, var = (z.mean(0), z.var(0)) if batch else (w["body.2.running_mean"], w["body.2.running_var"])
        z = (z - mean) / np.sqrt(var + 1e-5) * w["body.2.weight"] + w["body.2.bias"]
    found: NDArray[np.bool_] = (np.maximum(z, 0) @ w["head.weight"].T + w["head.bias"]).argmax(1) == y
    return found


def weights(run: fl.Run) -> Weights:
    return {name: value.astype(np.float64) for name, value in load_file(run.path / "final.safetensors").items()}


def remembered(run: fl.Run) -> dict[int, Weights]:
    """The newest memory of every client that has one."""
    found: dict[int, Weights] = {}
    for path in sorted((run.path / "checkpoints" / "clients").iterdir()):  # by client, then by round
        matched = re.fullmatch(r"client-(\d+)-round-(\d+)\.safetensors", path.name)
        assert matched
        found[int(matched[1])] = {name: value.astype(np.float64) for name, value in load_file(path).items()}
    return found


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedbabu"])
def test_pooled_and_client_accuracy_are_those_of_the_final_weights(method: str) -> None:
    run = fl.run(FIELDS, method=method)
    x, y = digits()
    right = hits(weights(run), x, y)
    assert run.summary["test_accuracy"] == pytest.approx(right.mean(), abs=1e-12)
    own = [right[index].mean() for index in own_tests(run)]
    assert run.clients[-1]["accuracy"] == pytest.approx(own, abs=1e-12)
    assert run.summary["client_accuracy"]["mean"] == pytest.approx(np.mean(own))
    assert run.summary["client_accuracy"]["std"] == pytest.approx(np.std(own))
    assert run.summary["client_accuracy"]["worst"] == min(own)
    assert "personal_accuracy" not in run.summary


def test_what_is_served_is_what_is_tested() -> None:
    """FedExP hands out the mean of its last two iterates."""
    run = fl.run(FIELDS, method="fedexp", rounds=4)
    x, y = digits()
    assert run.summary["test_accuracy"] == pytest.approx(hits(weights(run), x, y).mean(), abs=1e-12)


def test_personal_accuracy_is_that_of_each_clients_own_head() -> None:
    run = fl.run(FIELDS, method="fedper", checkpoint_seconds=0)
    x, y = digits()
    shared, kept = weights(run), remembered(run)
    assert 0 < len(kept) < 10  # so both kinds of client are here
    own = []
    for client, index in enumerate(own_tests(run)):
        w = dict(shared)
        if client in kept:
            head = kept[client]["personal"]
            w["head.weight"], w["head.bias"] = head[:640].reshape(10, 64), head[640:]
        own.append(hits(w, x[index], y[index]).mean())
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(own, abs=1e-12)
    assert run.summary["personal_accuracy"]["mean"] == pytest.approx(np.mean(own))
    assert np.mean(own) > run.summary["client_accuracy"]["mean"] + 0.1  # a drawn head knows nothing
    drawn = load_file(run.path / "initial.safetensors")
    assert np.array_equal(shared["head.weight"], drawn["head.weight"])  # the server never holds a personal region
    assert run.clients[-1]["accuracy"] == pytest.approx([hits(shared, x, y)[i].mean() for i in own_tests(run)])


def normalized(bn: str, **fields: Any) -> fl.Run:
    Path("net.py").write_text(NORMALISED)
    return fl.run(FIELDS, model="net.py:net", bn=bn, **fields)


def test_running_statistics_are_shared_and_tested_with() -> None:
    run = normalized("running")
    x, y = digits()
    right = hits(weights(run), x, y)
    assert run.summary["test_accuracy"] == pytest.approx(right.mean(), abs=1e-12)
    assert run.clients[-1]["accuracy"] == pytest.approx([right[i].mean() for i in own_tests(run)], abs=1e-12)
    assert "personal_accuracy" not in run.summary


@pytest.mark.parametrize("bn", ["batch", "local"])
def test_without_statistics_of_its_own_the_global_model_uses_those_of_the_images_tested(bn: str) -> None:
    run = normalized(bn)
    x, y = digits()
    w = weights(run)
    size = run.recipe.eval_batch
    pieces = [slice(first, first + size) for first in range(0, len(y), size)]
    right = np.concatenate([hits(w, x[piece], y[piece], batch=True) for piece in pieces])
    assert run.summary["test_accuracy"] == pytest.approx(right.mean(), abs=1e-12)
    own = [hits(w, x[i], y[i], batch=True).mean() for i in own_tests(run)]
    assert run.clients[-1]["accuracy"] == pytest.approx(own, abs=1e-12)
    assert own != [right[i].mean() for i in own_tests(run)]  # it matters which images are tested together


def test_local_statistics_are_each_clients_own() -> None:
    run = normalized("local", checkpoint_seconds=0)
    x, y = digits()
    kept, own = remembered(run), []
    assert 0 < len(kept) < 10
    for client, index in enumerate(own_tests(run)):
        mean, var = np.split(kept[client]["statistics"], 2) if client in kept else (np.zeros(16), np.ones(16))
        w = {**weights(run), "body.2.running_mean": mean, "body.2.running_var": var}
        own.append(hits(w, x[index], y[index]).mean())
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(own, abs=1e-12)


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_hits_of_the_pooled_test_are_those_of_every_clients_own(method: str) -> None:
    folder = RunFolder(fl.run(FIELDS, method=method).path)
    with federation(folder.experiment(), folder) as fed:
        restore_finished(fed, folder)
        assert evaluate_global(fed) == {"test_accuracy": fl.Run(folder.path).summary["test_accuracy"]}
        assert evaluate_clients(fed) == evaluate_clients(fed, fresh=False)


def test_a_spread_leaves_out_what_is_not_known() -> None:
    found = summarize([0.2, None, 0.4, 0.9, None, 0.5])
    assert found == {
        "mean": pytest.approx(0.5),
        "std": pytest.approx(np.std([0.2, 0.4, 0.9, 0.5])),
        "worst": 0.2,
        "q1": pytest.approx(0.35),
        "median": pytest.approx(0.45),
        "q3": pytest.approx(0.6),
        "clients": 4,
    }
    assert summarize([None]) == {"clients": 0}


def test_a_client_without_test_images_has_no_accuracy() -> None:
    generator = np.random.Generator(np.random.PCG64(0))
    x, y = generator.integers(0, 256, (103, 2, 2, 1), dtype=np.uint8), np.arange(103) % 4
    np.savez("few.npz", train_x=x[:100], train_y=y[:100], test_x=x[100:], test_y=y[100:])
    run = fl.run(FIELDS, data="few.npz", split="iid", method="fedper")
    for name in ("accuracy", "personal_accuracy"):
        known = [value is not None for value in run.clients[-1][name]]
        assert known == [len(index) > 0 for index in own_tests(run)]
        assert not all(known)
    assert run.summary["client_accuracy"]["clients"] == sum(len(index) > 0 for index in own_tests(run))


def test_many_clients_are_evaluated_in_little_memory() -> None:
    """A column of numbers for all, and not an object for each, which would take 250 bytes."""
    x, y = np.zeros((20_000, 1, 1, 1), np.uint8), np.arange(20_000) % 10
    np.savez("many.npz", train_x=x, train_y=y, test_x=x[:1000], test_y=y[:1000])
    fields = {"data": "many.npz", "split": "iid", "clients": 20_000, "fraction": 0.001, "rounds": 1, "eval_every": 0}
    run = fl.run(fields, model="linear", workers=1)
    folder = RunFolder(run.path)
    with federation(folder.experiment(), folder) as fed:
        restore_finished(fed, folder)
        evaluate_global(fed)
        tracemalloc.start()
        try:
            columns = evaluate_clients(fed)
            held = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert columns["accuracy"] == run.clients[-1]["accuracy"]
    assert columns["accuracy"].count(None) == 19_000  # no test samples
    assert held < 100 * 20_000
