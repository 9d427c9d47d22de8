"""`precision: auto` is a fixed rule, and what it chose stands in the recipe of the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from folders import Notes
from torch import Tensor, nn

import fedloom as fl
from fedloom.deploy.flower.app import canonical
from fedloom.engine import precision
from fedloom.engine.precision import choose_precision, dense_share, processor_flags
from fedloom.nets import Net, build
from fedloom.recipe import recipe

FIELDS = {"clients": 10, "fraction": 0.2, "rounds": 1, "workers": 1, "eval_every": 0, "precision": "auto"}
COLOUR = (3, 32, 32)
XEON, ZEN3, GRAVITON = ("avx2", "avx512f", "avx512_bf16", "amx_bf16"), ("avx2", "fma"), ("asimd", "bf16")
CNN = {"model": "cnn", "data": {"name": "digits", "images": 200}}


def net(name: str) -> Net:
    with torch.random.fork_rng(devices=[]):
        return build(name, COLOUR, 10, "running")


@pytest.mark.parametrize("name", ["lenet", "conv4", "vgg11", "resnet18"])
def test_dense_convolutions_are_bf16_where_the_processor_multiplies_it(name: str) -> None:
    for flags in (XEON, ("avx512_bf16",), GRAVITON):
        assert choose_precision(recipe({}), net(name), COLOUR, flags)[0] == "bf16"
    assert choose_precision(recipe({}), net(name), COLOUR, ZEN3)[0] == "fp32"


@pytest.mark.parametrize("name", ["mobilenet", "mlp", "linear"])
def test_depthwise_and_linear_nets_stay_fp32_on_any_processor(name: str) -> None:
    for flags in (XEON, ZEN3, GRAVITON):
        assert choose_precision(recipe({}), net(name), COLOUR, flags)[0] == "fp32"


def test_other_devices_stay_fp32() -> None:
    assert choose_precision(recipe({"device": "cuda"}), net("lenet"), COLOUR, XEON)[0] == "fp32"


class Head(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1))


def test_the_share_counts_multiply_adds() -> None:
    layers = [
        nn.Conv2d(3, 16, 3, padding=1),  # too few channels come in: 4 * 4 * 16 * 27
        nn.Conv2d(16, 32, 3, padding=1),  # dense: 4 * 4 * 32 * 144
        nn.Conv2d(32, 32, 3, padding=1, groups=32),  # depthwise: 4 * 4 * 32 * 9
        nn.Conv2d(32, 16, 1),  # a kernel of one pixel: 4 * 4 * 16 * 32
        nn.Conv2d(16, 8, 3, padding=1),  # too few go out: 4 * 4 * 8 * 144
    ]
    made = Net(nn.Sequential(*layers), Head(128, 10), 128, 10)  # 128 * 10
    rest = 16 * (16 * 27 + 32 * 9 + 16 * 32 + 8 * 144) + 1280
    assert dense_share(made, (3, 4, 4)) == pytest.approx(16 * 32 * 144 / (16 * 32 * 144 + rest))


def test_counting_leaves_no_trace() -> None:
    made = net("conv4")
    before, drawn = {name: value.clone() for name, value in made.state_dict().items()}, torch.get_rng_state()
    made.train()
    dense_share(made, COLOUR)
    assert made.training and not any(module._forward_hooks for module in made.modules())
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_flags_are_read_as_linux_writes_them(tmp_path: Path) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text("processor\t: 0\nmodel name\t: x\nflags\t\t: fpu avx512_bf16 amx_bf16\n\nflags\t\t: fpu\n")
    assert processor_flags(told) == {"fpu", "avx512_bf16", "amx_bf16"}
    told.write_text("processor\t: 0\nFeatures\t: fp asimd bf16\n")
    assert processor_flags(told) == {"fp", "asimd", "bf16"}
    told.write_text("processor\t: 0\n")
    assert processor_flags(told) == frozenset()
    assert all(isinstance(name, str) for name in processor_flags(tmp_path / "none"))


@pytest.mark.parametrize(("flags", "chosen"), [(XEON, "bf16"), (ZEN3, "fp32")])
def test_the_stored_recipe_says_what_was_chosen_and_the_run_is_that_run(
    flags: tuple[str, ...], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "processor_flags", lambda: flags)
    notes = Notes()
    run = fl.run(FIELDS, **CNN, out="auto", callbacks=[notes])
    assert yaml.safe_load(Path("auto/recipe.yaml").read_text())["precision"] == chosen
    assert any(said.startswith(f"precision: auto is {chosen} here: ") for said in notes.said)
    plain = fl.run({**FIELDS, **CNN, "precision": chosen}, out="plain")
    assert run.summary["digest"] == plain.summary["digest"]
    assert run.summary["recipe_digest"] == plain.summary["recipe_digest"]


def test_a_comparison_carried_on_elsewhere_keeps_what_was_chosen_where_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields = {**FIELDS, **CNN, "out": "both"}
    monkeypatch.setattr(precision, "processor_flags", lambda: XEON)
    first = fl.compare("fedavg", seeds=1, fine_tuning=None, **fields)
    monkeypatch.setattr(precision, "processor_flags", lambda: ZEN3)
    again = fl.compare("fedavg", seeds=1, fine_tuning=None, **fields)
    assert again.results[0].run.recipe.precision == "bf16"
    assert again.results[0].run.summary == first.results[0].run.summary


def test_nodes_are_told_the_precision() -> None:
    with pytest.raises(fl.FedloomError, match="precision: auto is decided by one machine's processor"):
        canonical(recipe({"precision": "auto"}))
