"""`kernels: torch` leaves every convolution to torch; `auto` finds the same numbers in another way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedloom as fl
from fedloom.cli.main import main
from fedloom.deploy.flower.plan import blank_experiment
from fedloom.engine.experiment import prepare
from fedloom.nets.kernels import transforms
from fedloom.recipe import recipe
from fedloom.rng import torch_generator

NET = """
from torch import nn

def net(shape, classes):
    body = nn.Sequential(
        nn.Conv2d(shape[0], 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4),
        nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )
    return body, nn.Linear(256, classes)
"""
# Rates and momentum are powers of two and pixels are whole sixteenths, so that no order of these operations matters.
FIELDS: dict[str, Any] = {
    "data": {"name": "digits", "normalize": "none", "images": 128},
    "split": "iid",
    "clients": 1,
    "fraction": 1.0,
    "model": "net.py:net",
    "rounds": 2,
    "epochs": 1,
    "batch": 32,
    "lr": 0.125,
    "momentum": 0.5,
    "workers": 1,
    "eval_every": 0,
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET, encoding="utf-8")
    torch.set_num_threads(1)


def by_hand(run: fl.Run) -> dict[str, Tensor]:
    """One client's rounds with plain layers of torch and torch's own optimizer, from the first weights of the run."""
    bunch, stored = load_digits(), np.load(run.path / "partition.npz")
    kept = np.arange(len(bunch.target)) % 5 != 0
    index = stored["train_index"]
    x = torch.from_numpy(bunch.images[kept][index]).float().unsqueeze(1) / 16
    y = torch.from_numpy(bunch.target[kept][index])
    scope: dict[str, Callable[..., tuple[nn.Module, nn.Module]]] = {}
    exec(NET, scope)
    net = nn.Sequential()
    for name, module in zip(("body", "head"), scope["net"]((1, 8, 8), 10), strict=True):
        net.add_module(name, module)
    net = net.to(memory_format=torch.channels_last)
    net.load_state_dict(load_file(run.path / "initial.safetensors"))
    assert {type(module) for module in net.modules() if isinstance(module, nn.Conv2d)} == {nn.Conv2d}
    for round in (1, 2):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.125, momentum=0.5)
        for chosen in torch.randperm(len(y), generator=torch_generator(0, "local", round, 0)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(net(x[chosen].contiguous(memory_format=torch.channels_last)), y[chosen]).backward()
            optimizer.step()
    return net.state_dict()


def final(run: fl.Run) -> dict[str, Tensor]:
    return load_file(run.path / "final.safetensors")


def test_kernels_torch_has_the_bits_of_plain_layers_trained_by_hand_and_auto_their_numbers() -> None:
    plain, quick = (fl.run(FIELDS, kernels=kernels, out=kernels) for kernels in ("torch", "auto"))
    expected = by_hand(plain)
    assert set(expected) == set(final(plain))
    for name, weight in expected.items():
        assert torch.equal(final(plain)[name], weight), name
        torch.testing.assert_close(final(quick)[name], weight, rtol=0, atol=1e-5)
    assert plain.summary["digest"] != quick.summary["digest"]  # else nothing was chosen, and nothing compared
    assert fl.Run(Path("torch")).recipe.kernels == "torch"


@pytest.mark.parametrize(
    "made", [prepare, lambda given: blank_experiment(given, (1, 8, 8), 10)], ids=["a run", "a node's plan"]
)
def test_nets_of_a_recipe_with_kernels_torch_have_torch_s_own_layers_alone(made: Callable[..., Any]) -> None:
    def layers(kernels: str) -> set[type]:
        net = made(recipe({**FIELDS, "kernels": kernels})).program.net
        return {type(module) for module in net.modules() if isinstance(module, nn.Conv2d)}

    assert layers("torch") == {nn.Conv2d}
    assert nn.Conv2d not in layers("auto")


@pytest.mark.parametrize("method", ["wn", "agn", "norm(kind=gn)", "fnr"])
def test_parts_that_change_convolutions_build_on_torch_s_own(method: str) -> None:
    net = prepare(recipe({**FIELDS, "method": method, "kernels": "torch"})).program.net
    made = net(torch.rand(64, 1, 8, 8))
    assert not any("_Spectral" in name or "_Convolve" in name for name in operations(made))
    quick = prepare(recipe({**FIELDS, "method": method})).program.net
    assert any("_Spectral" in name for name in operations(quick(torch.rand(64, 1, 8, 8))))


def operations(made: Tensor) -> set[str]:
    found, todo = set(), [made.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None:
            found.add(type(node).__name__)
            todo += [parent for parent, _ in node.next_functions]
    return found


@pytest.mark.parametrize(
    "command", [["run"], ["compare", "--methods", "fedavg", "--no-personal"], ["sweep", "--over", "lr=0.1"]]
)
def test_every_command_that_trains_has_the_flag(command: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--kernels", "torch", "--rounds", "1", "--clients", "10", "--workers", "1", "--name", "x"])
    assert not ended.value.code
    assert all("kernels: torch" in found.read_text() for found in Path("runs").rglob("recipe.yaml"))
    assert list(Path("runs").rglob("recipe.yaml"))


def test_other_kernels_are_refused_in_a_sentence() -> None:
    with pytest.raises(
        fl.FedloomError, match="kernels: must be 'auto', 'torch', 'portable' or 'native' \\(got fast\\)"
    ):
        fl.run(FIELDS, kernels="fast")


def test_the_public_question_finds_the_tensors_that_the_private_one_finds() -> None:
    x = torch.rand(3, 4, 5)
    seen: list[tuple[bool, bool]] = []

    def look(t: Tensor) -> Tensor:
        seen.append((transforms.lacks_storage(t), bool(transforms.is_wrapped(t))))
        return t.sum()

    for tensor in (x, x[:, :2].transpose(0, 1), x[:0], x.double().requires_grad_() * 2):
        look(tensor)
    torch.func.vmap(look)(x)
    torch.func.grad(look)(x)
    torch.func.vmap(torch.func.grad(look))(x)
    torch.func.jvp(look, (x,), (x,))
    assert seen == [(False, False)] * 4 + [(True, True)] * 4


@pytest.mark.slow
def test_without_torch_s_private_function_results_gradients_and_stacks_are_the_same() -> None:
    code = """
import sys, torch, torch.func
torch.set_num_threads(1)
private = sys.modules["torch._C._functorch"]
if sys.argv[1] == "without":
    del private.is_functorch_wrapped_tensor
from fedloom.nets.kernels import spectra, transforms
assert (transforms.is_wrapped is transforms.lacks_storage) == (sys.argv[1] == "without")
draw = torch.Generator().manual_seed(0)
x, weight, bias = (torch.randn(shape, generator=draw) for shape in [(3, 8, 4, 6, 6), (5, 4, 3, 3), (5,)])
loss = lambda w, x: spectra.convolve(x, w, bias, (1, 1)).square().sum()
found = [torch.func.vmap(lambda one: spectra.convolve(one, weight, bias, (1, 1)))(x)]
found += [torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, x), torch.func.grad(loss)(weight, x[0])]
leaf = weight.clone().requires_grad_()
loss(leaf, x[0]).backward()
print([tensor.double().abs().sum().item() for tensor in [*found, leaf.grad, spectra.convolve(x[0], weight, bias, (1, 1))]])
"""
    said = [
        subprocess.run([sys.executable, "-c", code, how], check=True, capture_output=True, text=True).stdout
        for how in ("with", "without")
    ]
    assert said[0] == said[1] != ""
