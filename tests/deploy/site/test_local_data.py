"""The experiment of a site: a node without the compiled kernels of the recipe trains by portable ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom as fl

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import serve

from fedloom.nets.kernels.native import library

NET = """
from torch import nn

def net(shape, classes):
    body = nn.Sequential(nn.Conv2d(shape[0], 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return body, nn.Linear(8, classes)
"""
FIELDS: dict[str, Any] = {
    "data": {"name": "digits", "images": 120},
    "split": "iid",
    "clients": 2,
    "fraction": 1.0,
    "model": "net.py:net",
    "rounds": 2,
    "lr": 0.05,
    "eval_every": 0,
}


def test_nodes_without_a_compiler_say_so_and_end_with_the_weights_of_portable_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("net.py").write_text(NET, encoding="utf-8")
    alone = {kernels: fl.run(FIELDS, kernels=kernels, out=kernels) for kernels in ("portable", "native")}
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "_reason", None)
    with pytest.warns(
        UserWarning, match=r"kernels: native is not available at this node: \$CXX.*it uses portable ones"
    ):
        together = serve(FIELDS | {"kernels": "native"}, tmp_path)
    assert together.recipe.kernels == "native" and together.summary["lost"] == 0
    assert together.summary["digest"] == alone["portable"].summary["digest"] != alone["native"].summary["digest"]
    for name, weight in alone["native"].weights.items():
        torch.testing.assert_close(together.weights[name], weight, rtol=1e-3, atol=1e-4)
