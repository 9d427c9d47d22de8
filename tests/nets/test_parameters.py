"""Parameters of nets in `model`: how they are read, what is refused, and what a stored recipe holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
import torch
from pydantic import Field
from torch import nn

from fedloom.errors import FedloomError
from fedloom.nets import build, list_models, spelled_model
from fedloom.nets.parameters import parameters_of, read_values, split_text
from fedloom.studies.sweep import grid

torch.set_num_threads(1)

NET = """
import math
from torch import nn

def net(shape, classes, width: int, act="relu", bias: bool = True, rate: float | None = None):
    layer = nn.Linear(math.prod(shape), width, bias=bias)
    return nn.Sequential(nn.Flatten(), layer, nn.Tanh() if act == "tanh" else nn.ReLU()), nn.Linear(width, classes)
"""


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("mlp", "mlp", {}),
        ("mlp(hidden=200x200)", "mlp", {"hidden": "200x200"}),
        ("lstm( hidden = 8 , layers=2 )", "lstm", {"hidden": "8", "layers": "2"}),
        ("a b/(1)/net.py:net(width=3)", "a b/(1)/net.py:net", {"width": "3"}),
        ("a(1)/net.py:net", "a(1)/net.py:net", {}),
        ("timm:vit.in1k?pretrained=true&img_size=32", "timm:vit.in1k", {"pretrained": "true", "img_size": "32"}),
        ('net.py:f(name="a, b")', "net.py:f", {"name": '"a, b"'}),
        ("C:\\x\\net.py:f(width=3)", "C:\\x\\net.py:f", {"width": "3"}),
    ],
)
def test_a_text_is_a_name_and_its_parameters(text: str, name: str, values: dict[str, str]) -> None:
    assert split_text(text) == (name, values)


def test_values_are_read_by_their_annotation_or_by_the_type_of_the_default() -> None:
    def net(
        shape: object,
        classes: object,
        widths: tuple[int, ...],
        kind: Literal["a", 7] = "a",
        rate: Annotated[float, Field(gt=0)] | None = None,
        on: bool = False,
        word: str = "",
        free=1.5,  # type: ignore[no-untyped-def]
        plain=None,  # type: ignore[no-untyped-def]
    ) -> None: ...

    known, anything = parameters_of(net)
    texts = {"widths": "4x5", "kind": "7", "rate": "1e-3", "on": "true", "word": "12", "free": "2", "plain": "[1]"}
    assert not anything
    texts.pop("plain")
    values = read_values("net", known, texts)
    assert values == {"widths": (4, 5), "kind": 7, "rate": 1e-3, "on": True, "word": "12", "free": 2.0}
    assert read_values("net", known, {"widths": "4", "rate": "none"}) == {"widths": (4,), "rate": None}
    for bad, sentence in {
        "kind": "allowed are a, 7",
        "on": "allowed are true and false",
        "free": "a number is expected",
        "widths": "joined by x",
    }.items():
        with pytest.raises(FedloomError, match=f"net: {bad} is 'maybe'; .*{sentence}"):
            read_values("net", known, {"widths": "4", bad: "maybe"})


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("mlp", "mlp"),
        ("mlp(hidden=64)", "mlp"),
        (" mlp( hidden = 32x8 ) ", "mlp(hidden=32x8)"),
        ("lstm(layers=2, hidden=8, pool=last)", "lstm(hidden=8, layers=2)"),
        ("transformer?dropout=0.10&width=32", "transformer(width=32, dropout=0.1)"),
    ],
)
def test_a_stored_recipe_names_only_what_differs_from_the_defaults(text: str, canonical: str) -> None:
    assert spelled_model(text) == canonical == spelled_model(canonical)


def test_hidden_gives_the_layers_of_an_mlp() -> None:
    net = build("mlp(hidden=20x30)", (1, 8, 8), 7, "running")
    assert [tuple(weight.shape) for weight in net.parameters()] == [(20, 64), (20,), (30, 20), (30,), (7, 30), (7,)]


def test_the_default_mlp_has_the_weights_that_it_always_had() -> None:
    torch.manual_seed(3)
    net = build("mlp", (1, 8, 8), 10, "running")
    torch.manual_seed(3)
    first, head = nn.Linear(64, 64), nn.Linear(64, 10)
    wanted = [first.weight, first.bias, head.weight, head.bias]
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), wanted, strict=True))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mlp(hiden=3)", "mlp has no parameter 'hiden'; its parameters are hidden=64"),
        ("linear(width=3)", "linear has no parameter 'width'; it has none"),
        ("mlp(hidden=a)", "mlp: hidden is 'a'; whole numbers joined by x are expected, such as 200x200"),
        ("mlp(hidden=0)", "mlp: hidden is '0'; it must be greater than or equal to 1"),
        ("mlp(hidden=1, hidden=2)", "hidden stands twice in"),
        ("mlp(64)", "cannot read '64' in 'mlp(64)'; write NAME(key=value, key=value)"),
        ("mlp()", "cannot read ''"),
        ("transformer(width=30)", "width must be a multiple of heads"),
        ("transformer(patch=3)", "choose a patch that divides both sides"),
    ],
)
def test_a_wrong_parameter_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(FedloomError) as error:
        build(text, (1, 8, 8), 10, "running")
    assert sentence in str(error.value)


def test_a_users_function_has_parameters_too(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    name = f"{tmp_path}/net.py:net"
    net = build(f"{name}(width=5, act=tanh, bias=false)", (1, 8, 8), 10, "running")
    assert [tuple(weight.shape) for weight in net.parameters()] == [(5, 64), (10, 5), (10,)]
    assert isinstance(net.body.get_submodule("2"), nn.Tanh)
    assert spelled_model(f"{name}?bias=true&width=5") == f"{name}(width=5)"
    with pytest.raises(FedloomError, match=r"needs a value of width: write .*net\(width=VALUE\)"):
        build(name, (1, 8, 8), 10, "running")


def test_a_sweep_over_nets_keeps_their_commas_together() -> None:
    swept = grid(["model=mlp(hidden=8x8),lstm(hidden=8, layers=2),timm:x?a=1&b=2"])
    assert swept.points["model"] == ["mlp(hidden=8x8)", "lstm(hidden=8, layers=2)", "timm:x?a=1&b=2"]


def test_the_list_of_models_names_inputs_and_parameters() -> None:
    rows = {row["name"]: row for row in list_models()}
    assert rows["mlp"]["options"] == "hidden=64"
    assert rows["lstm"]["inputs"] == "tokens, features"
