"""FedFN."""

from __future__ import annotations

import reference
import torch
from reference import normalized_cross_entropy
from tiny import HEAD_BYTES, MODEL_BYTES, agree, problem, traffic, train

from fedloom.data import InputSpec
from fedloom.methods import TaskInfo
from fedloom.methods.fn import FN
from fedloom.nets import build

TASK = TaskInfo(inputs=InputSpec.image((1, 8, 8)), classes=10, clients=5, samples=1437, rounds=3, seed=0)


def test_cross_entropy_of_normalized_features_is_trained() -> None:
    run = train("fn", lr=0.5)
    assert "head.bias" not in run.weights
    agree(run, reference.fedavg(problem(run), normalized_cross_entropy))


def test_the_rows_are_the_ones_that_fedavg_begins_with() -> None:
    assert torch.equal(
        problem(train("fn", rounds=1)).initial["head.weight"],
        problem(train("fedavg", rounds=1)).initial["head.weight"],
    )


def test_the_length_of_features_changes_nothing() -> None:
    net = FN().build(build("mlp", (1, 8, 8), 10, "running"), TASK)
    f = torch.rand(6, 64) + 0.01
    for scale in (1e-3, 7.0, 1e4):
        torch.testing.assert_close(net.head(scale * f), net.head(f))
    assert net.head(torch.zeros(2, 64)).isfinite().all()


def test_only_the_bias_no_longer_travels() -> None:
    bytes_ = MODEL_BYTES - HEAD_BYTES + 4 * 640
    assert traffic(train("fn")) == {(bytes_, bytes_)}


def test_with_scaffold_both_act() -> None:
    run = train("scaffold + fn", lr=0.5, rounds=2)
    assert traffic(run) == {(2 * 4 * (64 * 65 + 640), 2 * 4 * (64 * 65 + 640))}
    assert "head.bias" not in run.weights
    assert run.summary["digest"] != train("fn", lr=0.5, rounds=2).summary["digest"]
