"""CCVR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import BODY, HEAD, Problem, Weights, gradients, training_images
from reference import read as read_weights
from reference_personal import NORMED
from reference_regularizers import logits
from tiny import MODEL_BYTES, gap, problem, train
from torch import Tensor

from fedloom import FedloomError, Run, method
from fedloom.methods.api.secure_sums import check_sums
from fedloom.rng import torch_generator

# After a few rounds on one to three classes a client; some clients miss every round and answer all the same.
FIELDS: dict[str, Any] = {"split": "shards:2", "rounds": 3, "lr": 0.05}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("fedavg", **FIELDS, out=str(tmp_path_factory.mktemp("ccvr") / "base"))


def features(w: Weights, x: Tensor) -> Tensor:
    return torch.relu(x @ w["body.1.weight"].T + w["body.1.bias"])


def calibrated(
    p: Problem, w: Weights, samples: int, epochs: int, batch: int, lr: float, normed: bool = False
) -> Weights:
    """The head that SGD makes of class Gaussians over all samples together."""
    x, y = (torch.cat([own[i] for own in p.data]) for i in (0, 1))
    assert len(y) == len(training_images()[1])
    f = features(w, x).numpy()
    draws = torch_generator(p.recipe["seed"], "ccvr")
    made, labels = [], []
    for c in range(10):
        own = f[y.numpy() == c]
        values, vectors = np.linalg.eigh(np.cov(own.T))  # unbiased
        root = torch.from_numpy((vectors * np.sqrt(values.clip(0))) @ vectors.T)
        noise = torch.randn(samples, 64, generator=draws, dtype=torch.double)
        made.append(torch.from_numpy(own.mean(0)) + noise @ root)
        labels.append(torch.full((samples,), c))
    x, y = torch.cat(made), torch.cat(labels)

    def loss(head: Weights, f: Tensor, y: Tensor) -> Tensor:
        z = f @ head["head.weight"].T + head["head.bias"] if not normed else (
            f / f.norm(dim=1, keepdim=True)
        ) @ head["head.weight"].T  # fmt: skip
        return -z.log_softmax(1)[torch.arange(len(y)), y].mean()

    head = {n: w[n] for n in HEAD if n in w}
    velocity = {n: torch.zeros_like(v) for n, v in head.items()}
    for _ in range(epochs):
        for chosen in torch.randperm(len(y), generator=draws).split(batch):
            g = gradients(loss, head, x[chosen], y[chosen], list(head))
            velocity = {n: 0.9 * velocity[n] + g[n] for n in head}
            head = {n: head[n] - lr * velocity[n] for n in head}
    return head


def test_the_head_is_retrained_on_gaussians_of_all_clients_features(base: Run) -> None:
    run = train("ccvr(samples=100, epochs=3, batch=50, lr=0.02)", **FIELDS, workers=2)
    before, after = (read_weights(r.path / "final.safetensors") for r in (base, run))
    for name in BODY:
        assert torch.equal(before[name], after[name])
    for name, value in calibrated(problem(run), before, 100, 3, 50, 0.02).items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-4)
        assert float((after[name] - before[name]).abs().max()) > 1e-2
    x, y = training_images()
    right = [float((logits(w, x).argmax(1) == y).double().mean()) for w in (before, after)]
    assert right[1] > right[0] + 0.05  # what it is for

    first, last = run.rounds[0], run.rounds[-1]
    assert (first["bytes_down"], first["bytes_up"]) == (3 * MODEL_BYTES, 3 * MODEL_BYTES)
    assert last["bytes_down"] == 3 * MODEL_BYTES + 5 * (2 * MODEL_BYTES + 4 * 640)
    assert last["bytes_up"] == 3 * MODEL_BYTES + 5 * 4 * (10 * 65 + 10 * (1 + 64 * 65 // 2))
    assert run.summary["test_accuracy"] > base.summary["test_accuracy"]


def test_the_head_may_be_another_parts_as_long_as_it_is_trained_and_shared() -> None:
    fields = {**FIELDS, "lr": 0.3}
    run, plain = train("ccvr(samples=50, epochs=1) + fn", **fields), train("fn", **fields)
    before, after = (read_weights(r.path / "final.safetensors") for r in (plain, run))
    expected = calibrated(problem(run), before, 50, 1, 64, 0.01, normed=True)
    torch.testing.assert_close(after["head.weight"], expected["head.weight"], rtol=0, atol=1e-4)
    assert gap(run, plain) > 1e-3


def test_with_a_rate_of_zero_it_changes_nothing(base: Run) -> None:
    assert train("ccvr(lr=0)", **FIELDS).summary["digest"] == base.summary["digest"]


def test_classes_with_one_sample_or_none_are_no_obstacle() -> None:
    few: dict[str, Any] = {"split": "iid", "clients": 2, "fraction": 1.0}
    run = train("ccvr(samples=20, epochs=1)", rounds=1, data={"name": "digits", "images": 12}, **few)
    x, y = (torch.cat([own[i] for own in problem(run).data]) for i in (0, 1))
    counts = torch.bincount(y, minlength=10)
    assert counts.min() <= 1 and len(x) == 12
    assert all(bool(tensor.isfinite().all()) for tensor in run.weights.values())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ccvr + babu", "ccvr and babu both decide what happens to the head; keep one"),
        ("fedper + ccvr", "fedper and ccvr both decide what happens to the head; keep one"),
        ("ccvr + dr", "dr fixes head.weight for good, so ccvr has nothing to decide about it; keep one"),
        ("ccvr + lg", "ccvr and lg both decide what happens to the head; keep one"),
        ("ccvr + exp", "exp serves other weights than the training state, whose head ccvr would not have retrained"),
        ("dp + ccvr", "dp.* (queries|sums|replies)"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    with pytest.raises(FedloomError, match=f"method: {reason}"):
        train(text, rounds=1)


def test_features_of_several_bodies_are_refused() -> None:
    Path("normed.py").write_text(NORMED)
    reason = "method: ccvr: its class statistics are those of one body, and here clients keep a part of the net"
    with pytest.raises(FedloomError, match=reason):
        train("ccvr + fedbn", model="normed.py:normed")


def test_secure_aggregation_is_refused_by_name() -> None:
    with pytest.raises(FedloomError, match="ccvr uses finalize"):
        check_sums(method("ccvr"), "samples", {})


def test_the_number_of_workers_changes_no_bit() -> None:
    one, three = (train("ccvr", **FIELDS, workers=workers).summary["digest"] for workers in (1, 3))
    assert one == three
