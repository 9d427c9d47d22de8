"""First weights from a file."""

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
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fedloom as fl
from fedloom import FedloomError, RunCallback
from fedloom.engine.experiment import prepare
from fedloom.nets.foreign import our_names
from fedloom.recipe import recipe

FIELDS: dict[str, Any] = {"clients": 10, "fraction": 0.3, "rounds": 2, "workers": 1, "eval_every": 0}


def first(run: fl.Run) -> dict[str, Tensor]:
    return load_file(run.path / "initial.safetensors")


@pytest.mark.parametrize("method", ["fedavg", "fn", "dr", "etf", "gela", "sphere + fd"])
def test_a_runs_own_final_weights_are_read_wholly(method: str) -> None:
    before = fl.run(FIELDS, method=method, lr=0.02, name="before")
    run = fl.run(FIELDS, method=method, lr=0.02, seed=7, init="runs/before/final.safetensors")
    assert {n: t.tolist() for n, t in first(run).items()} == {n: t.tolist() for n, t in before.weights.items()}
    told = run.summary["init"]
    assert set(told["loaded"]) == set(before.weights)
    assert not (told["missing"] or told["mismatched"] or told["fixed"] or told["unused"])


def test_what_does_not_fit_is_as_drawn_and_listed() -> None:
    stored = fl.run(FIELDS, name="before").weights
    stored["head.weight"] = torch.zeros(3, 64)
    del stored["body.1.bias"]
    save_file({**stored, "more": torch.zeros(2)}, "some.safetensors")
    notes: list[str] = []

    class Listener(RunCallback):
        def note(self, text: str) -> None:
            notes.append(text)

    run = fl.run(FIELDS, init="some.safetensors", callbacks=[Listener()])
    drawn, begun = first(fl.run(FIELDS)), first(run)
    for name in drawn:
        taken = name in ("body.1.weight", "head.bias")
        assert torch.equal(begun[name], stored[name] if taken else drawn[name])
    told = run.summary["init"]
    assert (set(told["loaded"]), told["missing"]) == ({"body.1.weight", "head.bias"}, ["body.1.bias"])
    assert told["mismatched"] == {"head.weight": {"file": [3, 64], "net": [10, 64]}} and told["unused"] == ["more"]
    (said,) = notes
    assert said.startswith("init: 2 of 4 tensors are from some.safetensors; not in the file: body.1.bias; of another")


def test_heads_that_parts_derive_are_derived_from_the_files() -> None:
    stored = fl.run(FIELDS, name="before").weights
    path = "runs/before/final.safetensors"
    normalized = first(fl.run(FIELDS, method="fn", init=path))
    assert torch.equal(normalized["head.weight"], stored["head.weight"])
    run = fl.run(FIELDS, method="dr", init=path)
    v = first(run)["head.weight"].double()
    simplex = torch.eye(10, dtype=torch.float64) * 10 / 9 - 1 / 9
    torch.testing.assert_close(v @ v.T, simplex, rtol=0, atol=1e-5)
    assert run.summary["init"]["fixed"] == ["head.weight"]
    span = torch.linalg.qr(stored["head.weight"].double().T).Q  # its rows lie in the span of the file's head
    torch.testing.assert_close(v @ span @ span.T, v, rtol=0, atol=1e-5)
    moved = first(fl.run(FIELDS, method="gela", lr=0.01, init=path))  # a part puts the body into a module
    assert torch.equal(moved["body.0.1.weight"], stored["body.1.weight"])
    assert torch.equal(moved["body.1.bias"], torch.zeros(64))


def test_the_files_head_wins_over_head_init() -> None:
    stored = fl.run(FIELDS, name="before").weights
    both = fl.run(FIELDS, init="runs/before/final.safetensors", head_init="etf")
    assert torch.equal(first(both)["head.weight"], stored["head.weight"])
    save_file({"body.1.bias": torch.ones(64)}, "body.safetensors")
    v = first(fl.run(FIELDS, init="body.safetensors", head_init="etf"))["head.weight"].double()
    assert float((v @ v.T)[0, 1] / (v @ v.T)[0, 0]) == pytest.approx(-1 / 9, abs=1e-5)


def torchvision_resnet18() -> dict[str, Tensor]:
    """Names and shapes of torchvision's ResNet18, with values of our own."""
    g = torch.Generator().manual_seed(0)
    found: dict[str, Tensor] = {"conv1.weight": torch.randn(64, 3, 7, 7, generator=g)}

    def norm(name: str, width: int) -> None:
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            found[f"{name}.{leaf}"] = torch.rand(width, generator=g)
        found[f"{name}.num_batches_tracked"] = torch.tensor(7)

    norm("bn1", 64)
    inputs = 64
    for stage, width in enumerate((64, 128, 256, 512), start=1):
        for block in (0, 1):
            place = f"layer{stage}.{block}"
            for number, wide in ((1, inputs), (2, width)):
                found[f"{place}.conv{number}.weight"] = torch.randn(width, wide, 3, 3, generator=g)
                norm(f"{place}.bn{number}", width)
            if wide != inputs or (stage > 1 and block == 0):
                found[f"{place}.downsample.0.weight"] = torch.randn(width, inputs, 1, 1, generator=g)
                norm(f"{place}.downsample.1", width)
            inputs = width
    return {**found, "fc.weight": torch.randn(1000, 512, generator=g), "fc.bias": torch.randn(1000, generator=g)}


def test_a_torchvision_resnet18_is_read_but_for_its_stem_and_head() -> None:
    there = torchvision_resnet18()
    save_file(there, "resnet18.safetensors")
    x, y = np.zeros((40, 8, 8, 3), np.uint8), np.arange(40) % 10
    np.savez("tiny.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    given = {"data": "tiny.npz", "split": "iid", "clients": 2, "model": "resnet18", "init": "resnet18.safetensors"}
    experiment = prepare(recipe(given))
    told = experiment.program.origin
    assert told is not None
    assert told["missing"] == [] and told["unused"] == []
    assert set(told["mismatched"]) == {"body.0.weight", "head.weight", "head.bias"}
    assert (
        len(told["loaded"]) == len(experiment.program.layout.entries) - 3 == 20 * 5 - 1
    )  # 19 more convolutions, 20 normalizers
    state = experiment.program.net.state_dict()
    names = our_names(there)
    assert len(set(names.values())) == len(there)
    for foreign, ours in names.items():
        if ours in told["loaded"]:
            assert torch.equal(state[ours], there[foreign]), foreign
    assert names["layer1.0.bn2.running_var"] == "body.3.main.4.running_var"
    assert names["layer4.0.downsample.0.weight"] == "body.9.shortcut.0.weight"


def test_the_content_counts_and_a_changed_file_is_told() -> None:
    save_file({"body.1.bias": torch.ones(64)}, "a.safetensors")
    run = fl.run(FIELDS, init="a.safetensors", name="x")
    assert run.recipe.init_digest == run.summary["init"]["digest"]
    save_file({"body.1.bias": torch.zeros(64)}, "a.safetensors")
    with pytest.raises(FedloomError, match=r"init: a\.safetensors is no longer what this recipe was run with"):
        fl.run("runs/x/recipe.yaml", name="y")
    other = fl.run(FIELDS, init="a.safetensors")
    assert other.recipe.digest() != run.recipe.digest()
    assert fl.personalize(run, epochs=1).accuracy[0] == run.clients[-1]["accuracy"]  # reads the folder, not the file


@pytest.mark.slow
def test_after_a_kill_the_folder_is_resumed_without_the_file() -> None:
    save_file({"body.1.bias": torch.ones(64)}, "a.safetensors")
    fields = {**FIELDS, "rounds": 12, "checkpoint_seconds": 0, "init": "a.safetensors"}
    whole = fl.run(fields, name="whole")
    Path("recipe.yaml").write_text(json.dumps({**fields, "name": "killed"}))
    process = subprocess.Popen([sys.executable, "-m", "fedloom", "run", "recipe.yaml", "-q"], env=os.environ)
    until = time.monotonic() + 60
    while not list(Path("runs/killed/checkpoints").glob("round-*")) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    Path("a.safetensors").unlink()
    again = fl.run(resume="runs/killed")
    assert again.summary["digest"] == whole.summary["digest"]
    assert again.summary["init"] == whole.summary["init"]


def test_a_comparison_finds_its_finished_cells_again() -> None:
    save_file({"body.1.bias": torch.ones(64)}, "a.safetensors")
    once = fl.compare("fedavg; fn", **FIELDS, init="a.safetensors", name="both")
    assert fl.compare("fedavg; fn", **FIELDS, init="a.safetensors", name="both").rows == once.rows


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("weights.pt", "may hold a pickle"),
        ("hf:owner/name/pytorch_model.bin", "may hold a pickle"),
        ("weights.npz", "allowed are PATH.safetensors and hf:owner/name"),
        ("hf:name", "must read hf:owner/name"),
        ("nowhere.safetensors", "there is no file nowhere.safetensors"),
        ("text.safetensors", "is damaged or not a safetensors file"),
        ("other.safetensors", "no tensor of other.safetensors fits mlp"),
        ("nan.safetensors", "body.1.bias of nan.safetensors is not finite"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_and_nothing_is_written(given: str, said: str) -> None:
    Path("weights.pt").write_bytes(b"\x80\x04.")
    Path("text.safetensors").write_text("hello")
    save_file({"encoder.weight": torch.ones(3)}, "other.safetensors")
    save_file({"body.1.bias": torch.full((64,), float("nan"))}, "nan.safetensors")
    with pytest.raises(FedloomError) as caught:
        fl.run(FIELDS, init=given)
    assert str(caught.value).startswith("init: ") and said in str(caught.value)
    assert not Path("runs").exists()
