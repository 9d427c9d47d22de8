"""Models that are taken away: reloaded where fedloom is not, they predict the same."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.data import load

pytestmark = pytest.mark.slow  # exported nets are compiled

NORMED = """
from torch import nn

def normed(shape, classes):
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU())
    return body, nn.Linear(16, classes)
"""
FIELDS = {"clients": 5, "fraction": 0.6, "rounds": 3, "workers": 1, "eval_every": 0, "lr": 0.1, "split": "shards:2"}
ONNX = importlib.util.find_spec("onnxscript") is not None and importlib.util.find_spec("onnxruntime") is not None

# A process that cannot import fedloom: pixels in, logits out, for whole, halved and single batches.
ELSEWHERE = """
import sys
sys.modules["fedloom"] = None
import numpy as np
path, pixels = sys.argv[1], np.load("pixels.npy")
if path.endswith(".pt2"):
    import json, torch
    inside = {"fedloom.json": ""}
    model = torch.export.load(path, extra_files=inside).module()
    assert json.loads(inside["fedloom.json"])["output"]["name"] == "logits"
    say = lambda x: model(torch.from_numpy(x)).detach().numpy()
else:
    import onnxruntime
    session = onnxruntime.InferenceSession(path)
    assert "fedloom" in session.get_modelmeta().custom_metadata_map
    say = lambda x: session.run(["logits"], {"pixels": x})[0]
whole = say(pixels)
if len(sys.argv) < 3:
    assert np.allclose(np.concatenate([say(pixels[:7]), say(pixels[7:8]), say(pixels[8:])]), whole, atol=1e-4)
np.save("logits.npy", whole)
assert "fedloom.runs.run" not in sys.modules
"""


def elsewhere(path: Path, pixels: torch.Tensor, *more: str) -> np.ndarray:
    np.save("pixels.npy", pixels.numpy())
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(path), *more], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return np.load("logits.npy")


def raw_tests(path: Path, client: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Test images as they are stored, B,C,H,W, of everybody or of a client."""
    images, parts = load("digits"), np.load(path / "partition.npz")
    index = np.arange(len(images.test_y))
    if client is not None:
        index = parts["test_index"][slice(*parts["test_offsets"][client : client + 2])]
    return images.test_x[index].permute(0, 3, 1, 2).float().contiguous(), images.test_y[index]


@pytest.mark.parametrize(
    "suffix", [".pt2", pytest.param(".onnx", marks=pytest.mark.skipif(not ONNX, reason="needs onnx"))]
)
def test_the_global_model_predicts_the_same_where_fedloom_is_not(suffix: str) -> None:
    Path("normed.py").write_text(NORMED)
    run = fl.run(FIELDS, model="normed.py:normed", out="x")
    found = fl.export(run, f"model{suffix}")
    pixels, y = raw_tests(run.path)
    logits = elsewhere(found.path, pixels)
    assert (logits.argmax(1) == y.numpy()).mean() == pytest.approx(run.summary["test_accuracy"])
    w = {name: value.double() for name, value in run.weights.items()}
    facts = json.loads(Path(f"model{suffix}.json").read_text())
    told = facts["input"]["normalization"]
    x = ((pixels.double() / told["scale"] - told["mean"][0]) / told["std"][0]).flatten(1)
    h = x @ w["body.1.weight"].T + w["body.1.bias"]
    h = (h - w["body.2.running_mean"]) / (w["body.2.running_var"] + 1e-5).sqrt() * w["body.2.weight"] + w["body.2.bias"]
    expected = torch.relu(h) @ w["head.weight"].T + w["head.bias"]
    np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)
    assert facts["class_names"] == [str(i) for i in range(10)]
    assert facts["input"]["shape"] == ["batch", 1, 8, 8] and facts["input"]["range"] == [0, 16]
    assert facts["run"]["weights"] == run.summary["digest"] == facts["weights"]
    assert facts == found.facts


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("fedper", {}),
        ("ditto", {}),
        ("perfedavg", {}),
        ("gela", {"lr": 0.01, "momentum": 0.0}),
        ("fedbn", {"model": "normed.py:normed"}),
        ("fedavg", {"model": "normed.py:normed", "bn": "local"}),
    ],
)
def test_a_clients_own_model_gives_the_accuracy_that_the_run_tells(method: str, fields: dict[str, Any]) -> None:
    """Every client's number, recomputed from the file and the client's raw images."""
    Path("normed.py").write_text(NORMED)
    run = fl.run(FIELDS, method=method, out="x", **fields)
    told = run.clients[-1]["personal_accuracy"]
    took_part = {k for line in run.rounds for k in line["cohort"]}
    assert len(took_part) >= 3
    for client in range(5):
        found = fl.export(run, "model.pt2", client=client)
        pixels, y = raw_tests(run.path, client)
        model = torch.export.load(found.path).module()
        right = (model(pixels).argmax(1) == y).double().mean().item()
        assert right == pytest.approx(told[client]) == pytest.approx(found.facts["accuracy_on_its_test_images"])
    assert len(set(told)) > 1


def test_a_fine_tuned_client_is_the_one_that_personalize_tells_of() -> None:
    run = fl.run(FIELDS, out="x")
    told = fl.personalize(run, part="head", epochs=2, lr=0.01)
    found = fl.export(run, "model.pt2", client=2, part="head", epochs=2, lr=0.01)
    pixels, y = raw_tests(run.path, 2)
    logits = elsewhere(found.path, pixels)
    assert (logits.argmax(1) == y.numpy()).mean() == pytest.approx(told.accuracy[-1][2])
    assert found.facts["fine_tuned"] == {"part": "head", "epochs": 2, "lr": 0.01, "loss": "method"}


def test_an_adopted_model_and_the_global_one_need_no_data() -> None:
    images = load("digits")
    np.savez("theirs.npz", x=images.train_x.numpy(), y=images.train_y.numpy())
    np.savez("new.npz", x=images.test_x[::3].numpy(), y=images.test_y[::3].numpy())
    run = fl.run(FIELDS, data="theirs.npz", method="gela", lr=0.01, momentum=0.0, out="x")
    Path("theirs.npz").unlink()
    adopted = fl.adopt(run, "new.npz", epochs=3)
    test = torch.arange(len(images.test_y[::3])) % 5 == 0
    pixels = images.test_x[::3][test].permute(0, 3, 1, 2).float()
    model = torch.export.load(fl.export(run, "mine.pt2", weights=adopted.path).path).module()
    right = (model(pixels).argmax(1) == images.test_y[::3][test]).double().mean().item()
    assert right == pytest.approx(adopted.after)
    assert fl.export(run, "global.pt2").facts["model"] == "global"


def test_nets_that_normalize_by_the_batch_say_so_and_a_server_without_statistics_is_refused() -> None:
    Path("normed.py").write_text(NORMED)
    run = fl.run(FIELDS, model="normed.py:normed", bn="batch", out="x")
    found = fl.export(run, "model.pt2")
    assert found.facts["depends_on_the_batch"]
    pixels, y = raw_tests(run.path)
    logits = torch.cat([torch.export.load("model.pt2").module()(piece) for piece in pixels.split(100)])
    assert (logits.argmax(1) == y).double().mean().item() == pytest.approx(run.summary["test_accuracy"])
    local = fl.run(FIELDS, model="normed.py:normed", bn="local", out="y")
    with pytest.raises(fl.FedloomError, match="with bn local only clients have statistics"):
        fl.export(local, "other.pt2")
    assert not Path("other.pt2").exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"out": "model.pth"}, r"out: model\.pth must end in \.pt2 or \.onnx"),
        ({"client": 5}, "client: the run has clients 0 to 4"),
        ({"client": -1}, "client: the run has clients 0 to 4"),
        ({"epochs": 2}, "epochs: the global model is not fine-tuned"),
        ({"client": 0, "weights": "x/final.safetensors"}, "give only one of the two"),
        ({"weights": "y/final.safetensors"}, "y/final.safetensors does not come from x"),
        ({"weights": "nowhere.safetensors"}, "there is no file nowhere"),
        ({"client": 0, "part": "neck"}, "part: 'neck' is unknown"),
        ({"out": "x/recipe.yaml/model.pt2"}, "out: .* cannot be written"),
    ],
)
def test_what_cannot_be_is_told(
    fields: dict[str, Any], said: str, two_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(two_runs)
    with pytest.raises(fl.FedloomError, match=said):
        fl.export(**{"run": "x", "out": "model.pt2", **fields})
    assert not Path("model.pt2").exists() and not Path("model.pt2.json").exists()


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    for name, seed in (("x", 0), ("y", 1)):
        fl.run(FIELDS, rounds=1, seed=seed, out=str(folder / name))
    return folder


def test_personal_regions_in_a_global_model_are_pointed_out() -> None:
    run = fl.run(FIELDS, method="fedper", rounds=1)
    (note,) = fl.export(run, "model.pt2").notes
    assert note == "clients keep their head: the global model has it at initialization; --client exports one of theirs"
