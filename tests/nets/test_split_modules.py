"""Any nn.Module as body and head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import foreign_nets
import pytest
import torch
from foreign_nets import Conv, ConvHead, Picked, Softmaxed, Tied, TiedHead, Uncopied
from torch import nn

from fedloom.data.spec import InputSpec
from fedloom.engine.experiment import prepare
from fedloom.errors import FedloomError
from fedloom.nets import build
from fedloom.nets.split import logits_of, split
from fedloom.recipe import recipe

torch.set_num_threads(1)
DIGITS = InputSpec.image((1, 8, 8), 16)
FILE = Path(foreign_nets.__file__)


def images() -> torch.Tensor:
    return torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("make", "dim"),
    [
        (Conv, 16),
        (Tied, 64),
        (Picked, 8),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10)), 12),
    ],
)
def test_the_head_after_the_body_is_the_module(make: Callable[[], nn.Module], dim: int) -> None:
    module = make().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    body, head = split("net", module, DIGITS)
    assert isinstance(head, nn.Linear) and head.in_features == dim
    with torch.no_grad():
        torch.testing.assert_close(head(body.eval()(images())), logits_of(module(images())))
    assert list(module.state_dict()) == list(before)  # the user's object stays whole
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_the_head_may_be_named() -> None:
    module = ConvHead().eval()
    with pytest.raises(FedloomError, match=r"its output is not made by a linear layer \(last.2 is the last one"):
        split("net", module, DIGITS)
    body, head = split("net", module, DIGITS, "last")
    with torch.no_grad():
        assert torch.equal(head(body.eval()(images())), module(images()))
    assert body(images()).shape == (5, 144)


@pytest.mark.parametrize(
    ("make", "head", "sentence"),
    [
        (Softmaxed, None, ".*return the logits of the last layer"),
        (TiedHead, None, "its head out shares weight with embedding.weight of the body"),
        (Uncopied, None, "it cannot be copied"),
        (Conv, "fc", "fc is not its head: what it makes is not the output"),
        (
            Conv,
            "clasifier",
            "it has no submodule 'clasifier', which head names; its submodules are classifier, conv, bn",
        ),
        (nn.Flatten, None, "it has no linear layer that could be its head"),
        (lambda: nn.Linear(3, 10), None, "it fails on 3 samples of noise"),
        (lambda: Conv().double(), None, r"its buffer mask is torch.float64; fedloom keeps float32"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_a_sentence(
    make: Callable[[], nn.Module], head: str | None, sentence: str
) -> None:
    with pytest.raises(FedloomError, match=f"net: {sentence}"):
        split("net", make(), DIGITS, head)


def test_features_that_are_no_vector_are_refused() -> None:
    with pytest.raises(FedloomError, match=r"one row of features per sample.*it made a tensor of shape \(2, 8, 8\)"):
        build(f"{FILE}:maps", DIGITS, 10, "running")


def test_a_users_function_may_return_one_module(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from foreign_nets import Conv, ConvHead\n"
        "def net(shape, classes, width: int = 3):\n    return Conv(classes)\n"
        "def odd(shape, classes):\n    return ConvHead()\n"
        "def pair(shape, classes):\n    return Conv(), Conv()\n"
    )
    net = build(f"{tmp_path}/mine.py:net(width=4)", DIGITS, 7, "running")
    assert net(images()).shape == (5, 7) and net.dim == 16
    assert build(f"{tmp_path}/mine.py:odd(head=last)", DIGITS, 10, "running").dim == 144
    assert build(f"{tmp_path}/mine.py:odd?head=last", DIGITS, 10, "running").dim == 144
    with pytest.raises(FedloomError, match="returns a body and a head; leave out head=x"):
        build(f"{tmp_path}/mine.py:pair(head=x)", DIGITS, 10, "running")
    with pytest.raises(FedloomError, match=r"one row of 3 logits.*it made a tensor of shape \(2, 10\)"):
        build(f"{tmp_path}/mine.py:odd(head=last)", DIGITS, 3, "running")


def test_frozen_layers_and_constants_are_not_sent_and_shared_weights_are_one_tensor() -> None:
    program = prepare(recipe({"model": f"{FILE}:conv", "clients": 5})).program
    layout = program.layout
    status = layout.regions.status
    assert status["body.fixed.weight"] == status["body.fixed.bias"] == status["body.mask"] == "frozen"
    assert status["body.bn.running_mean"] == "shared"
    assert "body.count" not in status and "body.hidden_scale" not in status
    assert layout.regions.region["body.bn.weight"] == "norm" and layout.regions.region["head.weight"] == "head"
    sent = 4 * 9 + 4 + 8 + (144 * 16 + 16) + (160 + 10)
    assert layout.shared == sent and layout.shared_statistics == 8
    tied = prepare(recipe({"model": f"{FILE}:tied", "clients": 5})).program
    assert tied.layout.shared == 64 * 64 + 64 + 64 + 650
    assert tied.net.body.get_parameter("net.first.weight") is tied.net.body.get_parameter("net.second.weight")


def test_constants_stay_frozen_with_local_statistics_and_with_a_rebuilt_body() -> None:
    for fields in ({"bn": "local"}, {"method": "moon"}):
        program = prepare(recipe({"model": f"{FILE}:conv", "clients": 5, **fields})).program
        masks = [name for name in program.layout.regions.status if name.endswith("mask")]
        assert [program.layout.regions.status[name] for name in masks] == ["frozen"]
