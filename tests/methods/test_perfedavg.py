"""Per-FedAvg."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import cross_entropy, features, gradients, read
from reference_personal import own_tests, per_fedavg, plus, share_right
from tiny import MODEL_BYTES, agree, gap, problem, traffic, train

import fedloom as fl
from fedloom.rng import torch_generator


@pytest.mark.parametrize(
    ("method", "batch", "told"),
    [
        ("perfedavg(alpha=0.2)", "full", (0.2, None, "fo")),
        ("perfedavg(alpha=0.2)", 64, (0.2, None, "fo")),
        ("perfedavg(alpha=0.2, mode=hf, delta=0.01)", "full", (0.2, None, "hf", 0.01)),
        ("perfedavg(alpha=0.2, mode=hf, delta=0.01)", 64, (0.2, None, "hf", 0.01)),
        ("perfedavg(alpha=0.3, beta=0.02)", 64, (0.3, 0.02, "fo")),
    ],
)
def test_steps_are_taken_with_the_gradient_after_an_inner_step(
    method: str, batch: int | str, told: tuple[float, float | None, str]
) -> None:
    run = train(method, batch=batch, lr=0.05, schedule="step", workers=2)
    agree(run, per_fedavg(problem(run), *told), atol=2e-5)


def test_hessian_free_differs_from_first_order_by_the_second_derivative() -> None:
    """One step, one client: F's exact gradient is (I - alpha H) g; the difference of the two runs is alpha H g."""
    fields = {"clients": 1, "split": "iid", "fraction": 1.0, "rounds": 1, "epochs": 1, "momentum": 0.0}
    fields |= {"weight_decay": 0.0, "model": "linear"}
    runs = {mode: train(f"perfedavg(alpha=0.5, delta=0.01, mode={mode})", **fields) for mode in ("fo", "hf")}
    p = problem(runs["fo"])
    x, y = p.data[0]
    names = list(p.initial)
    ahead = plus(p.initial, gradients(cross_entropy, p.initial, x, y, names), -0.5)
    g = gradients(cross_entropy, ahead, x, y, names)
    live = [p.initial[n].clone().requires_grad_() for n in names]
    first = torch.autograd.grad(cross_entropy(dict(zip(names, live, strict=True)), x, y), live, create_graph=True)
    product = torch.autograd.grad(sum((a * g[n]).sum() for a, n in zip(first, names, strict=True)), live)  # type: ignore[arg-type]
    fo, hf = (read(run.path / "final.safetensors") for run in runs.values())
    for n, curved in zip(names, product, strict=True):
        torch.testing.assert_close((hf[n] - fo[n]) / 0.1, 0.5 * curved, rtol=0, atol=2e-4)
    assert gap(runs["fo"], runs["hf"]) > 1e-3


def test_without_an_inner_step_it_is_fedavg_on_a_batch_of_its_own() -> None:
    """alpha = 0: the gradient is taken where the client stands; with one full batch D' is D."""
    assert gap(train("perfedavg(alpha=0)"), train("fedavg")) < 1e-5
    assert gap(train("perfedavg(alpha=0, mode=hf)"), train("fedavg")) < 1e-5
    assert gap(train("perfedavg(alpha=0.3)"), train("fedavg")) > 1e-3


@pytest.mark.parametrize("steps", [1, 3])
def test_a_client_is_tested_after_adapting_on_its_own_training_images(steps: int) -> None:
    run = train(f"perfedavg(alpha=0.3, steps={steps})", split="shards:2", batch=64, rounds=4)
    p, w = problem(run), read(run.path / "final.safetensors")
    expected, before = [], []
    for k, (x, y) in enumerate(own_tests(p)):
        draws, mine = torch_generator(0, "tune", 0, k), w
        for _ in range(steps):
            chosen = torch.randperm(len(p.data[k][1]), generator=draws)[:64]
            batch = p.data[k][0][chosen], p.data[k][1][chosen]
            mine = plus(mine, gradients(cross_entropy, mine, *batch, list(w)), -0.3)
        for rows, v in ((expected, mine), (before, w)):
            rows.append(share_right(features(v, x) @ v["head.weight"].T + v["head.bias"], y))
    assert run.clients[-1]["accuracy"] == pytest.approx(before, abs=1e-9)
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(expected, abs=1e-9)
    assert np.mean(expected) > np.mean(before) + 0.1
    found = fl.personalize(run, epochs=0)
    assert found.accuracy == [run.clients[-1]["personal_accuracy"]]
    assert found.global_accuracy == run.clients[-1]["accuracy"]


def test_it_sends_no_more_than_fedavg() -> None:
    assert traffic(train("perfedavg(mode=hf)", rounds=1)) == {(MODEL_BYTES, MODEL_BYTES)}
