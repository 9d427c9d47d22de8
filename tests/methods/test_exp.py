"""FedExP."""

from __future__ import annotations

from pathlib import Path

import pytest
import reference
import torch
from reference import flat
from tiny import MODEL_BYTES, agree, checkpoint, problem, traffic, train

SHARP = {"split": "shards:2", "fraction": 1.0, "epochs": 5}  # clients that disagree: their updates cancel


@pytest.mark.parametrize("eps", [0.001, 0.1])
def test_the_server_extrapolates_and_hands_out_the_mean_of_the_last_two(eps: float) -> None:
    run = train(f"exp(eps={eps})", **SHARP)
    served, last, rates = reference.exp(problem(run), eps)
    assert max(rates) > 1.2
    agree(run, served)
    torch.testing.assert_close(checkpoint(run)["w"].double(), flat(last), rtol=0, atol=1e-5)


def test_unequal_clients_count_by_their_shares() -> None:
    run = train("exp", weight_decay=0.0, epochs=5)
    assert len(set(problem(run).shares(problem(run).cohorts[0]))) > 1
    agree(run, reference.exp(problem(run), 0.001)[0])


def test_clients_that_agree_are_not_slowed_down() -> None:
    """Equal updates would give the rate 1/2; the step is never shorter than FedAvg's."""
    fields = {"split": "iid", "clients": 3, "fraction": 1.0}
    run = train("exp", **fields)
    assert reference.exp(problem(run), 0.001)[2] == [1.0, 1.0, 1.0]
    plain = flat(reference.read(train("fedavg", **fields).path / "final.safetensors"))
    torch.testing.assert_close(checkpoint(run)["w"].double(), plain, rtol=0, atol=1e-6)


def test_a_very_large_guard_leaves_fedavg() -> None:
    run = train("exp(eps=1e9)", **SHARP)
    plain = flat(reference.read(train("fedavg", **SHARP).path / "final.safetensors"))
    torch.testing.assert_close(checkpoint(run)["w"].double(), plain, rtol=0, atol=1e-6)


def test_accuracy_is_that_of_the_weights_handed_out() -> None:
    run = train("exp", **SHARP, eval_every=1)
    images = reference.load_digits()
    test = [i for i in range(len(images.target)) if i % 5 == 0]
    kept = [i for i in range(len(images.target)) if i % 5 != 0]
    x = torch.from_numpy(images.images.reshape(-1, 64) / 16)
    x = (x - x[kept].mean()) / x[kept].std(correction=0)
    w = reference.read(run.path / "final.safetensors")
    logits = reference.features(w, x[test]) @ w["head.weight"].T + w["head.bias"]
    hits = (logits.argmax(1) == torch.from_numpy(images.target[test])).double().mean()
    assert run.summary["test_accuracy"] == pytest.approx(float(hits), abs=1e-9)


def test_statistics_of_normalizers_travel_and_are_plainly_averaged() -> None:
    Path("normed.py").write_text(
        "from torch import nn\n"
        "def normed(shape, classes):\n"
        "    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU())\n"
        "    return body, nn.Linear(16, classes)\n"
    )
    run = train("exp + scaffold", model="normed.py:normed", **{**SHARP, "epochs": 1, "rounds": 1})
    told = problem(run)
    (cohort,) = told.cohorts
    expected = torch.zeros(16, dtype=torch.double)
    for share, k in zip(told.shares(cohort), cohort, strict=True):
        x = told.data[k][0] @ told.initial["body.1.weight"].T + told.initial["body.1.bias"]
        expected += share * 0.1 * x.mean(0)  # one step: a tenth of the batch's mean
    torch.testing.assert_close(run.weights["body.2.running_mean"].double(), expected, rtol=0, atol=1e-5)
    vector, statistics = 64 * 16 + 16 + 16 + 16 + 160 + 10, 32
    assert len(checkpoint(run)["server.scaffold.control"]) == vector
    assert traffic(run) == {(4 * (2 * vector + statistics), 4 * (2 * vector + statistics))}


def test_nothing_more_travels_than_with_fedavg() -> None:
    assert traffic(train("exp")) == {(MODEL_BYTES, MODEL_BYTES)}
