"""Every net on its kinds of inputs: vmap, bf16, personal models, analysis and export; refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import fedloom as fl
from fedloom.io.files import read_tensors

pytestmark = pytest.mark.slow  # whole runs on data of every kind

torch.set_num_threads(1)
CASES = [
    ("table", "mlp(hidden=16x8)"),
    ("table", "linear"),
    ("signal", "cnn1d"),
    ("signal", "lstm(hidden=12)"),
    ("signal", "transformer(width=16, layers=1)"),
    ("text", "lstm(hidden=12, embedding=8)"),
    ("text", "transformer(width=16, layers=1)"),
]
VMAPPED = [case for case in CASES if "lstm" not in case[1]]


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 160)
    text = draw.integers(4, 40, (160, 10))
    text[np.arange(160), draw.integers(0, 5, 160)] = 1 + y
    text[:, 7:] = 0
    sets = {
        "table": draw.normal(size=(160, 12)).astype(np.float32) + y[:, None],
        "signal": draw.normal(size=(160, 2, 16)).astype(np.float32) + y[:, None, None],
        "text": text,
    }
    for name, values in sets.items():
        x = values if name == "text" else values.astype(np.float32)
        np.savez(f"{name}.npz", train_x=x[:120], train_y=y[:120], test_x=x[120:], test_y=y[120:])


def run(data: str, model: str, out: str, **fields: Any) -> fl.Run:
    base = {"clients": 6, "split": "iid", "fraction": 0.5, "rounds": 2, "workers": 1, "lr": 0.05, "batch": 8}
    return fl.run(**{**base, "data": f"{data}.npz", "model": model, "out": out, **fields})


@pytest.mark.parametrize(("data", "model"), VMAPPED)
def test_vmapped_clients_agree_with_eager_ones_up_to_rounding(data: str, model: str) -> None:
    run(data, model, "eager", method="prox")
    run(data, model, "vmapped", method="prox", vmap=3)
    eager, vmapped = (read_tensors(Path(name) / "final.safetensors")[0] for name in ("eager", "vmapped"))
    for name, value in eager.items():
        torch.testing.assert_close(vmapped[name], value, rtol=1e-4, atol=1e-5)


def test_a_recurrent_net_refuses_vmap_by_name() -> None:
    with pytest.raises(
        fl.FedloomError, match="vmap: the net has a recurrent layer, which torch cannot vmap; set vmap to off"
    ):
        run("text", "lstm", "run", vmap=3)
    assert run("text", "lstm(hidden=4)", "auto", vmap="auto", rounds=1).recipe.vmap == "off"
    assert not Path("run").exists()


@pytest.mark.parametrize(("data", "model"), CASES)
def test_a_run_is_the_same_for_any_number_of_workers_and_personal_and_analyzed(data: str, model: str) -> None:
    one = run(data, model, "one", method="scaffold + fn")
    two = run(data, model, "two", method="scaffold + fn", workers=2)
    assert one.summary["digest"] == two.summary["digest"]
    assert one.recipe.model == model
    assert len(fl.personalize(one, epochs=1, lr=0.01).accuracy[1]) == 6
    assert fl.analyze(one, what="norms,drift", clients=[0, 1]).path.exists()


@pytest.mark.parametrize(("data", "model"), CASES)
def test_bf16_trains_too(data: str, model: str) -> None:
    final = read_tensors(run(data, model, "run", precision="bf16", rounds=1).path / "final.safetensors")[0]
    assert all(value.isfinite().all() for value in final.values())


@pytest.mark.parametrize(("data", "model"), CASES)
def test_an_exported_net_takes_inputs_as_stored(data: str, model: str) -> None:
    made = run(data, model, "run")
    stored = np.load(f"{data}.npz")["test_x"]
    x = stored.astype(np.int64) if data == "text" else stored
    facts = fl.export(made, "net.pt2").facts
    assert facts["input"]["name"] == ("tokens" if data == "text" else "features")
    logits = torch.export.load("net.pt2").module()(torch.from_numpy(x)).detach().numpy()
    accuracy = float((logits.argmax(1) == np.load(f"{data}.npz")["test_y"]).mean())
    assert accuracy == pytest.approx(made.summary["test_accuracy"], abs=1e-6)
    fl.export(made, "net.onnx")
    session = onnxruntime.InferenceSession("net.onnx")
    (onnx,) = session.run(None, {facts["input"]["name"]: x})
    np.testing.assert_allclose(onnx, logits, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("data", "model", "method", "sentence"),
    [
        ("table", "mlp", "fedftg", "fedftg generates images, and the data are features of shape 12; leave it out"),
        ("text", "transformer", "fedftg", "fedftg generates images, and the data are sequences of 10 tokens"),
        ("text", "transformer", "norm", "norm: .*normalizes the last axes"),
        ("text", "lstm", "agn", "agn: this net has no normalizer, and no convolution"),
        ("table", "mlp", "wn", "wn: this net has no convolution"),
        ("text", "mlp", "fedavg", "mlp takes image or features inputs; these are sequences of 10 tokens: choose lstm"),
        (
            "table",
            "cnn",
            "fedavg",
            "cnn takes image inputs; these are features of shape 12: choose cnn1d, linear, lstm, mlp",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(data: str, model: str, method: str, sentence: str) -> None:
    with pytest.raises(fl.FedloomError, match=sentence):
        run(data, model, "run", method=method)
    assert not Path("run").exists()


def test_a_signal_net_takes_another_normalizer() -> None:
    made = run("signal", "cnn1d", "run", method="norm(kind=gn)")
    assert made.summary["test_accuracy"] >= 0
    assert any("norm" in name for name in read_tensors(made.path / "final.safetensors")[0])
