"""PersonalizationResult fine-tuning: what is trained, from where, and what is stored."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.data import load
from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client.replica import Replica
from fedloom.engine.store.state import State
from fedloom.evaluation.fine_tuned import TunedPart
from fedloom.evaluation.personalization import REGIONS
from fedloom.evaluation.tasks.finetune import FineTune
from fedloom.runs.folder import RunFolder

FIELDS = {"clients": 10, "fraction": 0.3, "rounds": 3, "workers": 1, "eval_every": 0}
BODY, HEAD = {"body.1.weight", "body.1.bias"}, {"head.weight", "head.bias"}


def test_accuracy_is_taken_before_and_after_every_epoch() -> None:
    run = fl.run(FIELDS)
    longer, shorter = fl.personalize(run, epochs=3, lr=0.01), fl.personalize(run.path, epochs=1, lr=0.01)
    assert [len(row) for row in longer.accuracy] == [10] * 4
    assert longer.accuracy[:2] == shorter.accuracy
    assert longer.accuracy[0] == run.clients[-1]["accuracy"]
    assert longer.initial["mean"] == run.summary["client_accuracy"]["mean"]
    assert longer.personal["mean"] == pytest.approx(np.mean(longer.accuracy[-1]))
    assert longer.personal["mean"] > longer.initial["mean"] + 0.1


def test_no_epochs_are_the_accuracy_as_it_is() -> None:
    run = fl.run(FIELDS, method="dr")
    assert fl.personalize(run, part="head", epochs=0).accuracy == [run.clients[-1]["accuracy"]]


@pytest.mark.parametrize("method", ["fedper", "fedrep(head_epochs=1)"])
def test_a_client_with_a_head_of_its_own_starts_from_it(method: str) -> None:
    run = fl.run(FIELDS, method=method)
    found = fl.personalize(run, epochs=1, lr=0.01)
    assert found.accuracy[0] == run.clients[-1]["personal_accuracy"]
    assert found.accuracy[0] != run.clients[-1]["accuracy"]


@pytest.mark.parametrize("method", ["scaffold", "fedper", "feddrplus"])
def test_the_curve_does_not_depend_on_the_number_of_workers(method: str) -> None:
    curves = []
    for workers in (1, 3):
        run = fl.run(FIELDS, method=method, augment="crop+flip", workers=workers)
        curves.append(fl.personalize(run, epochs=2, lr=0.05).accuracy)
    assert curves[0] == curves[1]


def test_fine_tuning_is_plain_sgd_on_the_clients_own_dataset() -> None:
    """Against torch.optim, with all of a client's images in one step, so that their order is no matter."""
    run = fl.run(FIELDS, batch="full", epochs=3, weight_decay=0.01, method="scaffold")
    found = fl.personalize(run, epochs=4, lr=0.3)
    data = load("digits")
    with np.load(run.path / "partition.npz") as file:
        parts = {key: file[key] for key in file.files}
    x = {
        k: ((v.float() / 16 - data.mean[0]) / data.std[0]).flatten(1)
        for k, v in (("train", data.train_x), ("test", data.test_x))
    }
    for client in range(10):
        own = {k: parts[f"{k}_index"][slice(*parts[f"{k}_offsets"][client : client + 2])] for k in ("train", "test")}
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        net.load_state_dict(
            {
                "0.weight": run.weights["body.1.weight"],
                "0.bias": run.weights["body.1.bias"],
                "2.weight": run.weights["head.weight"],
                "2.bias": run.weights["head.bias"],
            }
        )
        sgd = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9, weight_decay=0.01)
        curve = []
        for epoch in range(5):
            if epoch:
                sgd.zero_grad()
                nn.functional.cross_entropy(net(x["train"][own["train"]]), data.train_y[own["train"]]).backward()
                sgd.step()
            right = net(x["test"][own["test"]]).argmax(1) == data.test_y[own["test"]]
            curve.append(right.double().mean().item())
        assert [row[client] for row in found.accuracy] == pytest.approx(curve, abs=1e-9)


@pytest.mark.parametrize(
    ("method", "part", "changed"),
    [
        ("fedavg", "full", BODY | HEAD),
        ("fedavg", "head", HEAD),
        ("fedavg", "body", BODY),
        ("fedper", "head", HEAD),
        ("fedper", "body", BODY),
        ("fedbabu", "head", HEAD),  # frozen until fine-tuning
        ("fedbabu", "full", BODY | HEAD),
        ("feddrplus", "full", BODY),  # its head is fixed for good
    ],
)
def test_only_the_chosen_part_is_trained(method: str, part: TunedPart, changed: set[str]) -> None:
    experiment = RunFolder(fl.run(FIELDS, method=method, rounds=1).path).experiment()
    replica, buffers = Replica(experiment), SharedBuffers(experiment, 1)
    buffers.broadcast(State(experiment).served())
    if experiment.program.messages.state.nbytes:
        buffers.state_rows[0].copy_(experiment.program.messages.state_row)
    before = experiment.program.layout.tensors(experiment.program.initial)
    report = FineTune(0, list(REGIONS[part]), 2, 0.1).perform(replica, buffers, worker=0)
    after = experiment.program.layout.tensors(replica.weights.storage)
    assert {name for name in before if not torch.equal(before[name], after[name])} == changed
    assert len(report["correct"]) == 3


def test_the_outcome_is_stored_beside_the_run_and_the_run_is_left_as_it_is() -> None:
    run = fl.run(FIELDS, method="fedper")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    done: list[int] = []
    found = fl.personalize(run, part="head", epochs=2, lr=0.001, done=done.append)
    assert sorted(done) == list(range(10))
    stored: dict[str, Any] = json.loads((run.path / "personal" / "head-2-0.001.json").read_text())
    assert (stored["part"], stored["epochs"], stored["lr"]) == ("head", 2, 0.001)
    assert stored["initial_accuracy"] == found.initial
    assert stored["personal_accuracy"] == found.personal
    assert stored["curve"] == found.curve
    assert stored["clients"] == [list(column) for column in zip(*found.accuracy, strict=True)]
    assert {path: path.read_bytes() for path in before} == before
    assert not multiprocessing.active_children()


def test_a_run_that_is_not_finished_is_refused() -> None:
    run = fl.run(FIELDS, out="x")
    (run.path / "summary.json").unlink()
    with pytest.raises(fl.FedloomError, match="x is not finished; resume it with: fedloom run --resume x"):
        fl.personalize("x")
    with pytest.raises(fl.FedloomError, match="nowhere is not a run folder"):
        fl.personalize("nowhere")
    assert not Path("x/personal").exists()


def test_a_run_without_its_last_checkpoint_is_refused() -> None:
    run = fl.run(FIELDS, method="fedper", checkpoint_seconds=0)
    newest = max((run.path / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(fl.FedloomError, match="has lost its last checkpoint"):
        fl.personalize(run)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"part": "tail"}, "part: 'tail' is unknown; allowed are full, head, body"),
        ({"epochs": -1}, "epochs: must not be negative"),
        ({"lr": 0}, "lr: must be greater than 0"),
        ({"lr": float("nan")}, "lr: must be greater than 0"),
        ({"part": "head"}, "part: the head is fixed by the method"),
    ],
)
def test_what_cannot_be_done_is_told(fields: dict[str, Any], said: str) -> None:
    run = fl.run(FIELDS, method="feddrplus", rounds=1)
    with pytest.raises(fl.FedloomError, match=said):
        fl.personalize(run, **fields)
    assert not (run.path / "personal").exists()
    assert not multiprocessing.active_children()
