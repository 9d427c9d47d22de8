"""Adapters as peft's own files: peft loads them onto the plain base, and the logits are those of the run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedloom as fl
from fedloom import FedloomError
from fedloom.data import load
from fedloom.nets import FeatureNormHead, Net, build

pytestmark = pytest.mark.slow  # whole runs of adapted nets

peft = pytest.importorskip("peft")

FIELDS: dict[str, Any] = {"clients": 4, "fraction": 1.0, "rounds": 2, "eval_every": 0, "lr": 0.05, "split": "shards:5"}
NORMED = """
from torch import nn

def normed(shape, classes):
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16))
    return body, nn.Linear(16, classes)
"""
ONNX = importlib.util.find_spec("onnxscript") is not None and importlib.util.find_spec("onnxruntime") is not None


def adapted(method: str, model: str) -> tuple[fl.Run, Net]:
    """A run from a pretrained base, and that base as anybody would load it."""
    pretrained = fl.run(FIELDS, method="central", model=model, rounds=1, out="pretrained")
    run = fl.run(FIELDS, method=method, model=model, init="pretrained/final.safetensors", out="run")
    base = build(model, (1, 8, 8), 10, "running")
    base.load_state_dict(pretrained.weights)
    return run, base.eval()


def pixels() -> tuple[Tensor, Tensor]:
    """Test images as they are stored, and as the net sees them."""
    dataset = load("digits")
    raw = dataset.test_x.permute(0, 3, 1, 2).float().contiguous()
    return raw, dataset.pipeline("set")(dataset.test_x, None)


def own_logits(run: fl.Run, base: Net, scale: float, x: Tensor) -> Tensor:
    """W + scale B A written into the plain base, by hand."""
    weights = run.weights
    plain = {name: tensor for name, tensor in weights.items() if "base_layer" not in name and "lora_" not in name}
    for name in weights:
        if name.endswith(".base_layer.weight"):
            layer = name.removesuffix(".base_layer.weight")
            a, b = (weights[f"{layer}.lora_{which}.default.weight"] for which in "AB")
            delta = torch.einsum("or,ri...->oi...", b.flatten(1), a)
            plain[f"{layer}.weight"] = weights[name] + scale * delta
            if f"{layer}.base_layer.bias" in weights:
                plain[f"{layer}.bias"] = weights[f"{layer}.base_layer.bias"]
    base.load_state_dict(plain)
    with torch.no_grad():
        logits: Tensor = base(x)
    return logits


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("lora(rank=4)", "mlp"),
        ("lora(rank=4) + scaffold", "cnn"),
        ("lora(rank=4) + fn", "cnn"),
        ("lora(rank=4, train_norm=true)", "normed.py:normed"),
        ("lora(rank=4, targets=body.4)", "normed.py:normed"),
    ],
)
def test_peft_loads_the_files_onto_the_plain_base(method: str, model: str) -> None:
    Path("normed.py").write_text(NORMED)
    run, base = adapted(method, model)
    exported = fl.export(run, "adapters")
    assert {path.name for path in exported.path.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    if "fn" in method:
        base.head = FeatureNormHead.from_linear(base.head)
    raw, x = pixels()
    with torch.no_grad():
        before = base(x)
        loaded = peft.PeftModel.from_pretrained(base, "adapters").eval()
        logits = loaded(x)
    other, _ = (build(model, (1, 8, 8), 10, "running").eval(), None)
    if "fn" in method:
        other.head = FeatureNormHead.from_linear(other.head)
    expected = own_logits(run, other, 2.0, x)
    assert float((before - expected).abs().max()) > 1e-2
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(loaded.merge_and_unload()(x), expected, rtol=0, atol=1e-4)
    fl.export(run, "model.pt2")
    merged = torch.export.load("model.pt2").module()
    torch.testing.assert_close(merged(raw), expected, rtol=0, atol=1e-4)
    assert not any("lora" in name for name, _ in merged.named_parameters())


@pytest.mark.skipif(not ONNX, reason="needs onnx")
def test_onnx_has_the_adapters_merged() -> None:
    import onnxruntime

    run, base = adapted("lora(rank=4)", "cnn")
    fl.export(run, "model.onnx")
    raw, x = pixels()
    (logits,) = onnxruntime.InferenceSession("model.onnx").run(["logits"], {"pixels": raw.numpy()})
    np.testing.assert_allclose(logits, own_logits(run, base, 2.0, x), atol=1e-4)


def test_the_files_hold_what_was_trained_and_nothing_else() -> None:
    run, _ = adapted("lora(rank=4)", "mlp")
    fl.export(run, "adapters")
    names = {name.removeprefix("base_model.model.") for name in load_file("adapters/adapter_model.safetensors")}
    assert names == {"body.1.lora_A.weight", "body.1.lora_B.weight", "head.weight", "head.bias"}
    facts = json.loads(Path("adapters/fedloom.json").read_text())
    assert facts["targets"] == ["body.1"] and facts["trained_beside"] == ["head"]
    config = json.loads(Path("adapters/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 8, "LORA")


def test_a_clients_own_adapters_are_exported() -> None:
    run, base = adapted("lora(rank=4) + fedper", "mlp")
    fl.export(run, "global")
    fl.export(run, "client", client=1, part="adapter", epochs=1, lr=0.1)
    one, other = (load_file(f"{folder}/adapter_model.safetensors") for folder in ("global", "client"))
    assert all(float((one[name] - other[name]).abs().max()) > 1e-5 for name in one)
    assert isinstance(peft.PeftModel.from_pretrained(base, "client"), nn.Module)


def test_impossible_exports_are_refused_and_write_nothing() -> None:
    plain = fl.run(FIELDS, method="fedavg", out="plain")
    with pytest.raises(FedloomError, match="out: adapters is a folder, for adapters, and fedavg has none"):
        fl.export(plain, "adapters")
    assert not Path("adapters").exists()
    run = fl.run(FIELDS, method="lora", out="run")
    Path("full").mkdir()
    Path("full/mine.txt").write_text("mine")
    with pytest.raises(FedloomError, match="out: full exists already"):
        fl.export(run, "full")
    assert [path.name for path in Path("full").iterdir()] == ["mine.txt"]
