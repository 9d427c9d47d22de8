"""Modules in the cache, without pickle: the same bits come back, in another process too."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from foreign_nets import Conv, Tied
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.nets.stored import load, modules_folder, store

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))


def again(module: nn.Module) -> nn.Module:
    return load(store(module).removeprefix("module:"))


class Config:
    def __init__(self) -> None:
        self.width, self.kind, self.ratios = 3, torch.float32, (1, float("inf"))


class Odd(nn.Module):
    """Attributes of every kind that is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.act = functools.partial(F.leaky_relu, negative_slope=0.3)
        self.table: dict[Any, Any] = {"a": (1, 2), 3: {4, 5}, "norm": nn.LayerNorm}
        self.order = OrderedDict(x=torch.Size([1, 2]), y=None)
        self.device, self.plain = torch.device("cpu"), torch.arange(3.0)
        self.step = self.double
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.layers.append(self.layers[0])  # one module under two names
        self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def double(self, x: Tensor) -> Tensor:
        return 2 * x

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.act(layer(x))
        return self.step(x) * self.scale + self.config.width + self.plain.sum()


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Conv(), (2, 1, 8, 8)),
        (Odd(), (2, 4)),
        (nn.LSTM(3, 5, 2, batch_first=True), (2, 4, 3)),
        (nn.TransformerEncoderLayer(8, 2, activation=F.gelu, batch_first=True), (2, 4, 8)),
        (nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2)), None),
    ],
)
def test_a_stored_module_computes_the_same_bits(module: nn.Module, shape: tuple[int, ...] | None) -> None:
    twin = again(module)
    x = torch.randn(shape) if shape else torch.tensor([[1, 2, 3]])
    module.eval(), twin.eval()
    with torch.no_grad():
        one, other = module(x), twin(x)
    assert torch.equal(one[0], other[0])
    assert list(module.state_dict()) == list(twin.state_dict())
    trained = [weight.requires_grad for weight in module.parameters()]
    assert [weight.requires_grad for weight in twin.parameters()] == trained
    assert store(twin) == store(module)


def test_shared_modules_and_weights_stay_shared() -> None:
    twin = again(Tied())
    assert isinstance(twin, Tied) and twin.second.weight is twin.first.weight
    odd = again(Odd())
    assert isinstance(odd, Odd) and odd.layers[2] is odd.layers[0]
    assert odd.step.__self__ is odd
    assert odd.config.ratios == (1, float("inf")) and odd.table[3] == {4, 5} and odd.table["norm"] is nn.LayerNorm


def test_the_name_follows_from_the_content() -> None:
    torch.manual_seed(0)
    one = Conv()
    name = store(one)
    assert name == store(one)
    with torch.no_grad():
        one.fc.weight[0, 0] += 1
    assert store(one) != name
    one.drop.p = 0.7
    assert len({name, store(one)}) == 2


def local_class() -> nn.Module:
    class Local(nn.Module):
        pass

    return Local()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Conv(act=lambda x: x), r"this Conv cannot be stored for resuming: Conv.act is <lambda>"),
        (local_class, "Local is local_class.<locals>.Local, which has no name that can be imported"),
        (lambda: Conv(act=torch.Generator()), "Conv.act is a Generator"),
        (lambda: Conv(act=iter([])), "Conv.act is a list_iterator"),
    ],
)
def test_what_cannot_be_described_is_refused_with_what_to_do(make: Any, sentence: str) -> None:
    with pytest.raises(FedloomError, match=sentence) as error:
        store(make())
    assert "write a function (shape, classes) that makes it into a .py file" in str(error.value)
    assert not modules_folder().exists()


def test_a_changed_or_missing_folder_is_refused() -> None:
    name = store(Conv()).removeprefix("module:")
    path = modules_folder() / name / "module.json"
    described = json.loads(path.read_text())
    described["content"]["nodes"][0]["class"] = "os:system"
    path.write_text(json.dumps(described))
    with pytest.raises(FedloomError, match="was changed since it was stored"):
        load(name)
    with pytest.raises(FedloomError, match=r"module:Conv-0123456789abcdef is not in the cache"):
        load("Conv-0123456789abcdef")
    with pytest.raises(FedloomError, match="is no stored module"):
        load("../../etc")
    assert store(Conv()).startswith("module:Conv-")  # a damaged folder is written again


def test_the_running_class_of_a_script_is_found_by_its_file_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "helper_of_mine.py").write_text("import torch\ndef act(x):\n    return torch.tanh(x)\n")
    (tmp_path / "script.py").write_text(
        "import torch\nfrom torch import nn\nimport fedloom as fl\nfrom fedloom.nets.stored import store\n"
        "from helper_of_mine import act\n"
        "class Mine(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.fc, self.act = nn.Linear(3, 2), act\n"
        "    def forward(self, x):\n        return self.fc(self.act(x))\n"
        "torch.manual_seed(0)\nnet = Mine()\nname = store(net)\nprint(name, net(torch.ones(1, 3)).sum().item())\n"
        "fl.run(model=net, data='nothing')\n"
    )
    script = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    name, value = script.stdout.split()
    assert "nothing" in script.stderr  # the run itself is refused
    twin = load(name.removeprefix("module:"))
    assert twin(torch.ones(1, 3)).sum().item() == float(value)
