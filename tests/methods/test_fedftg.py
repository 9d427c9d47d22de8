"""FedFTG."""

from __future__ import annotations

import pytest
import torch
from reference_server import fedftg
from safetensors.torch import load_file
from tiny import MODEL_BYTES, agree, gap, problem, traffic, train

import fedloom as fl
from fedloom.nets.layers.generators import ImageGenerator

SMALL = "iterations=2, student_steps=3, batch=12, noise=6, width=4"


def test_the_average_is_tuned_on_generated_images() -> None:
    run = train(f"fedftg({SMALL}, lr=0.5)", rounds=2, workers=2)
    p = problem(run)
    agree(run, fedftg(p, 2, 3, batch=12, noise=6, width=4, lr=0.5, generator_lr=0.01), atol=2e-4)


@pytest.mark.parametrize("terms", ["iterations=0", "iterations=2, lr=0"])
def test_without_iterations_or_rate_the_weights_are_fedavgs(terms: str) -> None:
    assert train(f"fedftg({terms}, width=4, batch=8)").summary["digest"] == train("fedavg").summary["digest"]


@pytest.mark.parametrize("terms", ["hard=0", "diversity=0"])
def test_each_term_of_the_generator_does_something(terms: str) -> None:
    assert gap(train(f"fedftg({SMALL}, lr=1, {terms})", rounds=1), train(f"fedftg({SMALL}, lr=1)", rounds=1)) > 1e-5


def test_only_class_counts_travel() -> None:
    assert traffic(train(f"fedftg({SMALL})", rounds=1)) == {(MODEL_BYTES, MODEL_BYTES + 40)}


def test_statistics_of_normalizers_stay_those_of_the_clients() -> None:
    fields = {"model": "cnn", "clients": 2, "fraction": 1.0, "rounds": 1, "epochs": 1, "batch": 256}
    plain, run = train("gela", **fields), train(f"gela + fedftg({SMALL})", **fields)
    names = [name for name in plain.weights if "running" in name]
    assert names
    assert all(bool((plain.weights[name] == run.weights[name]).all()) for name in names)
    assert gap(plain, run) > 1e-5


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (3, 17, 10)])
def test_images_have_the_tasks_shape_and_the_moments_of_normalized_ones(shape: tuple[int, int, int]) -> None:
    y, draws = torch.arange(10).repeat(5), torch.Generator().manual_seed(0)
    x = ImageGenerator(noise=6, classes=10, width=4, shape=shape)(torch.randn(50, 6, generator=draws), y)
    assert x.shape == (50, *shape)
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(shape[0]), rtol=0, atol=1e-4)
    torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(shape[0]), rtol=0, atol=1e-2)


def test_the_same_bits_for_any_lanes_and_after_a_stop() -> None:
    fields = {"rounds": 3, "checkpoint_seconds": 0}
    whole = train(f"fedftg({SMALL})", workers=2, out="whole", **fields)
    assert train(f"fedftg({SMALL})", workers=1, out="other", **fields).summary["digest"] == whole.summary["digest"]
    newest = max((whole.path / "checkpoints").glob("round-*.safetensors"))
    expected = load_file(newest)
    for path in (newest, whole.path / "summary.json", whole.path / "final.safetensors"):
        path.unlink()
    fl.run(resume="whole")
    found = load_file(newest)
    assert all(bool((found[name] == expected[name]).all()) for name in expected)


def test_it_learns_on_digits() -> None:
    fields = {"split": "shards:2", "clients": 20, "fraction": 0.25, "epochs": 2, "batch": 16}
    run = fl.run(method="fedftg(width=4, iterations=4)", model="mlp", rounds=8, lr=0.05, workers=2, **fields)
    assert run.summary["test_accuracy"] > 0.4  # untrained: one in ten
