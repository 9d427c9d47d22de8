"""Net, its regions, and what is said when a model cannot be had."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedloom.nets.models
from fedloom.errors import FedloomError
from fedloom.nets import Net, build, list_models, model, region_of, registry

torch.set_num_threads(1)


class Selector(nn.Module):
    """A normalizer of a user's own, with another one inside."""

    normalizer = True

    def __init__(self) -> None:
        super().__init__()
        self.choice = nn.Parameter(torch.ones(2))
        self.inner = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


def test_regions_follow_module_types_and_never_names() -> None:
    body = nn.Sequential()
    body.add_module("bn", nn.Linear(4, 4))  # a misleading name
    body.add_module("plain", nn.BatchNorm1d(4))
    body.add_module("group", nn.GroupNorm(2, 4))
    body.add_module("layer", nn.LayerNorm(4))
    body.add_module("instance", nn.InstanceNorm1d(4, affine=True, track_running_stats=True))
    body.add_module("own", Selector())
    head = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))
    net = Net(body, head, 4, 2)
    regions = region_of(net)
    floats = [name for name, value in net.state_dict().items() if value.is_floating_point()]
    assert list(regions) == floats
    assert {name for name in regions if regions[name] == "body"} == {"body.bn.weight", "body.bn.bias"}
    assert {name for name in regions if regions[name] == "head"} == {n for n in floats if n.startswith("head.")}
    assert {"body.own.choice", "body.own.inner.running_var", "body.instance.running_mean"} <= set(regions)
    assert not any("num_batches_tracked" in name for name in regions)


def test_every_float_tensor_of_resnet18_has_a_region() -> None:
    net = build("resnet18", (3, 32, 32), 10, "running")
    regions = region_of(net)
    assert list(regions) == list(net.state_dict())
    norms = [name for name in regions if regions[name] == "norm"]
    assert len(norms) == 4 * 20  # scale, shift, mean and variance of 20 layers
    assert regions["head.weight"] == regions["head.bias"] == "head"
    assert regions["body.0.weight"] == "body"


def test_a_tied_tensor_is_listed_once_under_its_first_name() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    net = Net(nn.Sequential(first, second), nn.Linear(4, 2), 4, 2)
    assert list(region_of(net)) == [name for name, _ in net.named_parameters()]


def test_a_net_can_be_copied_and_pickled() -> None:
    net = build("conv4", (1, 16, 16), 3, "running").eval()
    x = torch.randn(2, 1, 16, 16)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin(x), net(x))
        assert (twin.dim, twin.classes) == (64, 3)


def test_too_small_images_are_refused_with_a_way_out() -> None:
    with pytest.raises(FedloomError) as caught:
        build("lenet", (1, 8, 8), 10, "running")
    assert str(caught.value) == (
        "lenet needs images of at least 16x16; these are 8x8: choose mlp or linear, or set data.resize to 16 or more"
    )


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(
        FedloomError, match=r"no model 'mobilnet': did you mean mobilenet\? choose cnn, cnn1d, conv4, .*vgg11"
    ):
        build("mobilnet", (3, 32, 32), 10, "running")
    with pytest.raises(FedloomError, match="no model 'zzz': choose cnn"):
        build("zzz", (3, 32, 32), 10, "running")


USER = """
import torch
from torch import nn

class Body(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        torch.rand(1)
        return self.drop(self.norm(self.conv(x))).mean((2, 3))

def make(shape, classes):
    return Body(shape[0]), nn.Linear(6, classes)

def one(shape, classes):
    return nn.Flatten()

def maps(shape, classes):
    return nn.Conv2d(shape[0], 6, 3), nn.Linear(6, classes)

def narrow(shape, classes):
    return Body(shape[0]), nn.Linear(5, classes)

def binary(shape, classes):
    return Body(shape[0]), nn.Linear(6, 2)

def wide(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 6)), nn.Linear(6, classes)

def broken(shape, classes):
    raise KeyError("oops")

number = 3
"""


@pytest.fixture
def user(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(USER)
    return path


def test_a_users_function_is_taken_from_a_file(user: Path) -> None:
    net = build(f"{user}:make", (1, 8, 8), 4, "running")
    assert (net.dim, net.classes) == (6, 4)
    assert region_of(net)["body.norm.running_mean"] == "norm"
    assert pickle.loads(pickle.dumps(net)).dim == 6
    again = build(f"{user}:make", (1, 8, 8), 4, "running")
    assert type(again.body) is type(net.body)


def test_an_edited_file_is_read_again(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    build(f"{user}:make", (1, 8, 8), 4, "running")
    user.write_text(USER.replace("6", "9"))
    assert build(f"{user}:make", (1, 8, 8), 4, "running").dim == 9


def test_a_users_function_is_taken_from_a_module(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(user.parent)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    assert build("mine:make", (3, 8, 8), 4, "batch").dim == 6


def test_finding_the_width_moves_no_statistic_and_uses_no_randomness(user: Path) -> None:
    torch.manual_seed(0)
    net = build(f"{user}:make", (1, 8, 8), 4, "running")
    after = torch.random.get_rng_state()
    torch.manual_seed(0)
    nn.Conv2d(1, 6, 3), nn.Linear(6, 4)
    assert torch.equal(after, torch.random.get_rng_state())
    assert not net.state_dict()["body.norm.running_mean"].any()
    assert all(module.training for module in net.modules())


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("missing", "has no 'missing'"),
        ("number", r"number must be a function \(shape, classes\) -> \(body, head\)"),
        ("one", "it has no linear layer that could be its head; write a function"),
        ("maps", r"one row of features per sample.*it made a tensor of shape \(2, 6, 6, 6\)"),
        ("narrow", "its body makes 6 features, its head takes 5"),
        ("binary", r"one row of 4 logits per sample.*\(2, 2\)"),
        ("wide", "its body fails on images of 8x8x1"),
        ("broken", "failed for images of 8x8x1 .KeyError: 'oops'"),
    ],
)
def test_a_users_mistake_is_named_in_a_sentence(user: Path, function: str, sentence: str) -> None:
    with pytest.raises(FedloomError, match=sentence) as caught:
        build(f"{user}:{function}", (1, 8, 8), 4, "running")
    assert f"{user}:{function}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_or_module_that_cannot_be_imported_is_named_in_a_sentence(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def make(:\n")
    for name, sentence in (
        ("no.such.module:make", "importing no.such.module failed .ModuleNotFoundError: No module named 'no'"),
        (f"{tmp_path}/none.py:make", "there is no file .*none.py"),
        (f"{bad}:make", "importing .*bad.py failed .SyntaxError"),
        (":make", "must read package.module:function or path/to/file.py:function"),
    ):
        with pytest.raises(FedloomError, match=sentence):
            build(name, (1, 8, 8), 4, "running")


def test_a_new_file_in_the_package_is_a_new_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy.py").write_text(
        "from torch import nn\n"
        "from fedloom.nets import model\n"
        "@model('toy', 'a toy', smallest=2)\n"
        "def toy(shape, classes):\n"
        "    return nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes)\n"
    )
    monkeypatch.setattr(fedloom.nets.models, "__path__", [*fedloom.nets.models.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_models", dict(registry._models))
    try:
        assert build("toy", (1, 4, 4), 3, "running").dim == 16
        assert {
            "name": "toy",
            "line": "a toy",
            "origin": "fedloom",
            "inputs": "image",
            "options": "",
            "smallest": 2,
            "parameters": 30730,
        } in list_models()
    finally:
        sys.modules.pop("fedloom.nets.models.toy", None)


def test_two_files_cannot_claim_one_name() -> None:
    build("mlp", (1, 8, 8), 10, "running")
    with pytest.raises(FedloomError, match="two nets are called mlp"):
        model("mlp", "another")(lambda shape, classes: (nn.Flatten(), nn.Linear(shape[0], classes)))
