"""New clients: whoever was never in the federation gets a personal model, without the federation's data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedloom as fl
from fedloom.io.files import read_tensors

FIELDS = {"clients": 10, "rounds": 3, "workers": 1, "eval_every": 0, "batch": "full", "lr": 0.5}
TENSORS = ("body.1.weight", "body.1.bias", "head.weight", "head.bias")


def newcomer(classes: tuple[int, ...] = (3, 7), **more: Any) -> dict[str, Any]:
    bunch = load_digits()
    chosen = np.isin(bunch.target, classes)
    return {"x": bunch.images[chosen].astype(np.uint8), "y": bunch.target[chosen], **more}


def write(content: dict[str, Any]) -> str:
    np.savez("new.npz", **content)
    return "new.npz"


def same(one: str, other: str) -> bool:
    a, b = read_tensors(Path(one)), read_tensors(Path(other))
    return a[1] == b[1] and all(torch.equal(a[0][name], b[0][name]) for name in a[0])


def test_it_is_fine_tuned_as_torch_would_and_tested_before_and_after() -> None:
    run = fl.run(FIELDS, out="x")
    given = newcomer()
    x, y = torch.from_numpy(given["x"]), torch.from_numpy(given["y"])
    test = torch.arange(len(y)) % 4 == 1
    data = write({"train_x": x[~test].numpy(), "train_y": y[~test], "test_x": x[test].numpy(), "test_y": y[test]})
    found = fl.adopt(run, data, epochs=4, lr=0.2, out="mine.safetensors")
    inputs = json.loads(Path("x/inputs.json").read_text())
    z = ((x.float() / 16 - inputs["mean"][0]) / inputs["std"][0]).flatten(1)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    net.load_state_dict(dict(zip(net.state_dict(), (run.weights[name] for name in TENSORS), strict=True)))
    sgd = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    curve = []
    for epoch in range(5):
        if epoch:
            sgd.zero_grad()
            nn.functional.cross_entropy(net(z[~test]), y[~test]).backward()
            sgd.step()
        curve.append((net(z[test]).argmax(1) == y[test]).double().mean().item())
    assert found.curve == pytest.approx(curve)
    assert (found.before, found.after) == (curve[0], curve[-1])
    assert found.after > found.before
    assert (found.train, found.test, found.held_out) == (int((~test).sum()), int(test.sum()), False)
    tensors, told = read_tensors(Path("mine.safetensors"))
    for name, value in zip(TENSORS, net.state_dict().values(), strict=True):
        torch.testing.assert_close(tensors[name], value, rtol=0, atol=1e-5)
    assert (told["part"], told["epochs"], told["lr"], told["loss"]) == ("full", "4", "0.2", "method")
    assert float(told["accuracy_after"]) == found.after


@pytest.mark.parametrize("keys", [("x", "y"), ("train_x", "train_y")])
def test_without_test_images_every_fifth_is_held_out_or_none_and_the_accuracy_is_unknown(keys: tuple[str, str]) -> None:
    fl.run(FIELDS, rounds=1, out="x")
    given = newcomer()
    data = write(dict(zip(keys, (given["x"], given["y"]), strict=True)))
    total = len(given["y"])
    found = fl.adopt("x", data)
    assert (found.test, found.train) == (-(-total // 5), total - -(-total // 5))
    assert found.held_out and found.after is not None
    assert found.lr == 0.05  # a tenth of the run's
    everything = fl.adopt("x", data, hold_out=False)
    assert (everything.test, everything.train, everything.held_out) == (0, total, False)
    assert everything.before is None and everything.after is None


def test_the_federations_data_and_its_checkpoints_are_not_needed() -> None:
    np.savez("theirs.npz", **newcomer(tuple(range(10))))
    run = fl.run(FIELDS, data="theirs.npz", out="x", method="scaffold + fn")
    data = write(newcomer())
    here = fl.adopt(run, data, out="here.safetensors")
    Path("theirs.npz").unlink()
    assert fl.adopt(run, data, out="there.safetensors").curve == here.curve
    for path in (run.path / "checkpoints").glob("*.safetensors"):
        path.unlink()
    assert fl.adopt(run, data, loss="ce").curve == here.curve
    assert same("there.safetensors", "here.safetensors")


@pytest.mark.parametrize("method", ["fedper", "ditto", "perfedavg", "gela", "feddrplus", "local", "fedexp", "fnr"])
def test_every_kind_of_method_takes_new_clients(method: str) -> None:
    fl.run(FIELDS, method=method, lr=0.05, momentum=0.0, batch=32, out="x")
    found = fl.adopt("x", write(newcomer()), epochs=8, lr=0.5 if method == "feddrplus" else 0.05)
    assert found.after is not None and found.after > 0.8


def test_classes_are_found_by_name() -> None:
    bunch = load_digits()
    names = np.array([f"d{i}" for i in range(10)])
    np.savez("named.npz", x=bunch.images.astype(np.uint8), y=bunch.target, class_names=names)
    fl.run(FIELDS, data="named.npz", out="x")
    given = newcomer()
    plain = fl.adopt("x", write(given), out="plain.safetensors")
    own = (given["y"] == 3).astype(np.int64)  # 7 is its class 0, 3 is its class 1
    renamed = fl.adopt(
        "x", write({**given, "y": own, "class_names": np.array(["d7", "d3", "d99"])}), out="r.safetensors"
    )
    assert renamed.curve == plain.curve
    assert same("plain.safetensors", "r.safetensors")
    with pytest.raises(fl.FedloomError, match="class 'd99' is unknown to the run, whose classes are d0, d1"):
        fl.adopt("x", write({**given, "y": own, "class_names": np.array(["d7", "d99"])}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"y": np.full(362, 12)}, "class 12 is unknown to the run, whose classes are 0 to 9"),
        ({"x": np.zeros((362, 9, 8), np.uint8)}, "its images are 9 x 8 x 1; the run was trained on 8 x 8 x 1"),
        ({"x": np.zeros((362, 8, 8, 3), np.uint8)}, "its images are 8 x 8 x 3"),
        ({"x": np.full((362, 8, 8), 200, np.uint8)}, "a pixel has the value 200; .* from 0 to 16"),
        (
            {"x": np.zeros((362, 8, 8), np.float32)},
            r"features of shape 8x8 \(float32\); the run was trained on images",
        ),
        ({"y": np.zeros(3, np.int64)}, "expected one number for each of the 362 samples"),
        ({"x": np.zeros((1, 8, 8), np.uint8), "y": np.zeros(1, np.int64)}, "one sample is not enough"),
    ],
)
def test_images_that_do_not_fit_are_refused_in_a_sentence(change: dict[str, Any], said: str) -> None:
    fl.run(FIELDS, rounds=1, out="x")
    with pytest.raises(fl.FedloomError, match=said):
        fl.adopt("x", write({**newcomer(), **change}))
    assert not Path("client.safetensors").exists()


def test_runs_and_places_that_do_not_fit_are_refused_in_a_sentence() -> None:
    run = fl.run(FIELDS, rounds=1, out="x", method="feddrplus")
    data = write(newcomer())
    for fields, said in (
        ({"part": "head"}, "part: the head is fixed by the method"),
        ({"lr": -1.0}, "lr: must be greater than 0"),
        ({"data": "nowhere.npz"}, "data.*nowhere.npz"),
        ({"run": "nowhere"}, "nowhere is not a run folder"),
    ):
        with pytest.raises(fl.FedloomError, match=said):
            fl.adopt(**{"run": run, "data": data, **fields})  # type: ignore[arg-type]
    Path("file").write_text("")
    with pytest.raises(fl.FedloomError, match=r"out: file/client\.safetensors cannot be written"):
        fl.adopt(run, data, out="file/client.safetensors")
    (run.path / "summary.json").unlink()
    with pytest.raises(fl.FedloomError, match="is not finished"):
        fl.adopt(run, data)
    assert not list(Path().glob("*.safetensors"))
