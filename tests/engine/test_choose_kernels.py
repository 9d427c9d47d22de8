"""`kernels: auto` is native where compiled kernels serve the net and can be built; what was chosen is stored and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import fedloom as fl
from fedloom.deploy.flower.app_template import init
from fedloom.engine.experiment import prepare
from fedloom.engine.kernels import choose_kernels
from fedloom.engine.resolve import resolve
from fedloom.nets.kernels.native import library
from fedloom.recipe import recipe
from fedloom.runs.run import resume, start

pytestmark = pytest.mark.skipif(
    library.native_reason() is not None, reason=f"no compiled kernels on this machine: {library.native_reason()}"
)

NET = """
from torch import nn

def net(shape, classes):
    body = nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, 2, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )
    return body, nn.Linear(16, classes)
"""
FIELDS: dict[str, Any] = {
    "data": {"name": "digits", "images": 200},
    "split": "iid",
    "clients": 4,
    "fraction": 1.0,
    "model": "net.py:net",
    "rounds": 2,
    "workers": 1,
    "eval_every": 0,
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    Path("net.py").write_text(NET, encoding="utf-8")


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not loaded the library, on a machine without a compiler."""
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "_reason", None)


def stored_kernels(path: str) -> str:
    return str(yaml.safe_load(Path(path, "recipe.yaml").read_text())["kernels"])


def test_auto_is_native_in_the_stored_recipe_with_the_same_bits_for_any_number_of_workers() -> None:
    one, two = (fl.run(FIELDS, workers=workers, out=f"workers-{workers}") for workers in (1, 2))
    assert stored_kernels("workers-1") == "native"
    assert one.summary["digest"] == two.summary["digest"]
    portable = fl.run(FIELDS, kernels="portable", out="portable")
    assert one.summary["digest"] != portable.summary["digest"]  # else nothing was compiled
    for name, weight in portable.weights.items():
        torch.testing.assert_close(one.weights[name], weight, rtol=1e-3, atol=1e-4)


def test_a_run_keeps_its_kernels_when_it_is_resumed() -> None:
    for kernels in ("native", "portable"):
        whole = fl.run(FIELDS, kernels=kernels, out=f"{kernels}-whole")
        start(recipe({**FIELDS, "kernels": kernels, "out": kernels}), until=1)
        assert resume(kernels).summary["digest"] == whole.summary["digest"]


def test_a_stored_run_that_says_auto_is_resumed_portably() -> None:
    whole = fl.run(FIELDS, kernels="portable", out="whole")
    start(recipe({**FIELDS, "kernels": "portable", "out": "cut"}), until=1)
    path = Path("cut/recipe.yaml")
    path.write_text(path.read_text().replace("kernels: portable", "kernels: auto"))
    assert resume("cut").summary["digest"] == whole.summary["digest"]


def test_the_choice_is_explained() -> None:
    _, notes = resolve(prepare(recipe(FIELDS)))
    assert notes == ["kernels: auto is native here: compiled kernels for 5 layers"]
    chosen = choose_kernels(recipe({**FIELDS, "precision": "bf16"}), prepare(recipe(FIELDS)).program.net)
    assert chosen == ("portable", "compiled kernels are for float32 on the CPU, not bf16 on cpu")


@pytest.mark.usefixtures("_no_compiler")
def test_without_a_compiler_auto_is_portable_and_native_is_refused_in_a_sentence() -> None:
    experiment, notes = resolve(prepare(recipe(FIELDS)))
    assert experiment.recipe.kernels == "portable"
    assert "kernels: auto is portable here: compiled kernels are not available: $CXX, /nonexistent/c++" in notes[0]
    with pytest.raises(
        fl.FedloomError, match=r"kernels: native is not available here: \$CXX.*or use kernels: portable"
    ):
        fl.run(FIELDS, kernels="native", out="x")
    assert not Path("x").exists()


@pytest.mark.usefixtures("_no_compiler")
def test_a_net_without_such_layers_starts_no_compiler_and_says_nothing() -> None:
    experiment, notes = resolve(prepare(recipe({**FIELDS, "model": "mlp"})))
    assert (experiment.recipe.kernels, notes) == ("portable", [])
    assert library._reason is None
    assert fl.run(FIELDS, model="mlp", kernels="native", rounds=1, out="x").summary["rounds"] == 1


def test_a_native_run_is_read_without_a_compiler_and_not_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    start(recipe({**FIELDS, "kernels": "native", "out": "cut"}), until=1)
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "_reason", None)
    with pytest.raises(fl.FedloomError, match="kernels: native is not available here"):
        resume("cut")
    assert prepare(recipe({**FIELDS, "kernels": "native"})).program.net(torch.rand(2, 1, 8, 8)).shape == (2, 10)


def test_kernels_are_in_the_digest_and_auto_counts_as_portable() -> None:
    digests = {kernels: recipe({**FIELDS, "kernels": kernels}).digest() for kernels in ("auto", "portable", "native")}
    assert digests["auto"] == digests["portable"] != digests["native"]


def test_a_flower_app_has_the_kernels_of_the_machine_that_makes_it() -> None:
    _, made = init(Path("app"), recipe(FIELDS))
    assert made.kernels == "native"
    _, made = init(Path("other"), recipe({**FIELDS, "model": "mlp"}))
    assert made.kernels == "portable"
