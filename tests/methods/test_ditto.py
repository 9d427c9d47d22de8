"""Ditto."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from reference import BODY, HEAD, Weights, features, flat, normalized_cross_entropy, read
from reference_personal import NORMED, STATISTICS, ditto, own_tests, share_right
from tiny import MODEL_BYTES, TINY, gap, memories, problem, traffic, train
from torch import Tensor

import fedloom as fl


def said(w: Weights, x: Tensor) -> Tensor:
    return features(w, x) @ w["head.weight"].T + w["head.bias"]


@pytest.mark.parametrize(("strength", "batch"), [(1.0, "full"), (0.3, 64), (0.0, 64)])
def test_each_client_trains_a_vector_of_its_own_tied_to_what_was_broadcast(strength: float, batch: int | str) -> None:
    run = train(f"ditto(strength={strength})", batch=batch, lr=0.05, schedule="step", rounds=4, workers=2)
    own = ditto(problem(run), strength)
    remembered = memories(run)
    assert set(remembered) == {k for k, v in enumerate(own) if v is not None}
    assert any(sum(k in cohort for cohort in problem(run).cohorts) > 1 for k in remembered)  # somebody came back
    for k, tensors in remembered.items():
        v = own[k]
        assert v is not None
        torch.testing.assert_close(tensors["ditto.own"].double(), flat(v), rtol=0, atol=1e-5)


@pytest.mark.parametrize("rest", ["", "scaffold", "prox(mu=0.1) + fn", "moon", "fedper"])
def test_the_global_stream_is_to_the_bit_that_of_the_same_sum_without_it(rest: str) -> None:
    fields = {"batch": 64, "augment": "crop+flip", "rounds": 2}
    without = train(rest or "fedavg", **fields)
    for text in (f"ditto + {rest}", f"{rest} + ditto") if rest else ("ditto",):
        run = train(text, **fields)
        assert run.summary["digest"] == without.summary["digest"]
        assert [(a["train_loss"], a["bytes_up"], a["bytes_down"]) for a in run.rounds] == [
            (a["train_loss"], a["bytes_up"], a["bytes_down"]) for a in without.rounds
        ]
        for k, tensors in memories(without).items():
            mine = memories(run)[k]
            assert all(torch.equal(mine[name], tensor) for name, tensor in tensors.items())


def test_the_global_stream_does_not_see_statistics_or_dropout_of_the_personal_one() -> None:
    dropping = NORMED.replace("nn.ReLU())", "nn.ReLU(), nn.Dropout(0.3))").replace("normed", "dropping")
    Path("dropping.py").write_text(dropping)
    fields = {"model": "dropping.py:dropping", "batch": 64}
    run, without = train("ditto", **fields), train("fedavg", **fields)
    assert run.summary["digest"] == without.summary["digest"]
    final = read(run.path / "final.safetensors")
    for tensors in memories(run).values():  # the statistics are the last of a storage, and the personal model's own
        statistics = tensors["ditto.own"][-32:].double()
        assert float((statistics - torch.cat([final[name] for name in STATISTICS])).abs().max()) > 1e-2


def test_untied_it_is_training_alone() -> None:
    fields = {"momentum": 0.0, "rounds": 4}
    alone = memories(train("local", **fields))
    for k, tensors in memories(train("ditto(strength=0)", **fields)).items():
        torch.testing.assert_close(tensors["ditto.own"], alone[k]["personal"], rtol=0, atol=1e-5)


def test_tied_fast_it_stays_with_the_global_model() -> None:
    """strength * lr = 1: however many steps are made, each lands one gradient step from the broadcast weights."""
    fields = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "rounds": 1, "epochs": 20}
    tied, loose = (memories(train(f"ditto(strength={strength})", **fields)) for strength in (10, 0))
    first = flat(read(train("ditto", rounds=1).path / "initial.safetensors"))
    for k in tied:
        near, far = (float((m[k]["ditto.own"].double() - first).norm()) for m in (tied, loose))
        assert 0 < near < 0.2 * far


def test_its_epochs_and_rate_may_be_its_own() -> None:
    one, other = (memories(train(text, epochs=1, rounds=1)) for text in ("ditto(epochs=3, lr=0.05)", "ditto"))
    three = memories(train("ditto", epochs=3, lr=0.05, rounds=1))
    for k in one:
        assert torch.equal(one[k]["ditto.own"], three[k]["ditto.own"])
        assert not torch.equal(one[k]["ditto.own"], other[k]["ditto.own"])


def test_each_client_is_tested_with_its_own_vector_and_one_without_with_the_global_model() -> None:
    run = train("ditto(strength=0.5)", split="shards:2", rounds=2, fraction=0.4, batch=64)
    own, w = ditto(problem(run), 0.5), read(run.path / "final.safetensors")
    assert None in own
    expected = [share_right(said(v or w, x), y) for v, (x, y) in zip(own, own_tests(problem(run)), strict=True)]
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(expected, abs=1e-9)
    assert run.summary["personal_accuracy"]["mean"] > run.summary["client_accuracy"]["mean"]
    assert fl.personalize(run, epochs=0).accuracy == [run.clients[-1]["personal_accuracy"]]


def test_it_is_trained_under_the_methods_loss_and_keeps_what_is_frozen() -> None:
    run = train("ditto(strength=0.5) + fn", batch=64)
    for k, v in enumerate(ditto(problem(run), 0.5, loss=normalized_cross_entropy)):
        if v is not None:
            torch.testing.assert_close(memories(run)[k]["ditto.own"].double(), flat(v), rtol=0, atol=1e-5)
    run = train("ditto(strength=0.5) + babu", batch=64)
    for k, v in enumerate(ditto(problem(run), 0.5, names=BODY)):
        if v is not None:
            torch.testing.assert_close(memories(run)[k]["ditto.own"].double(), flat(v), rtol=0, atol=1e-5)
            head = flat(read(run.path / "initial.safetensors"), HEAD)
            assert torch.equal(memories(run)[k]["ditto.own"][-len(head) :].double(), head)


def test_it_sends_no_more_than_fedavg() -> None:
    assert traffic(train("ditto", rounds=1)) == {(MODEL_BYTES, MODEL_BYTES)}
    assert gap(train("ditto", rounds=1), train("fedavg", rounds=1)) == 0
    assert TINY["clients"] > len(memories(train("ditto", rounds=1, fraction=0.4)))
