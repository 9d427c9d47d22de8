"""FedBN."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from reference import flat
from reference_heads import Normalizer
from reference_personal import NORM, NORMED, REST, STATISTICS, normed, normed_clients, own_tests, share_right
from tiny import agree, distance, memories, problem, traffic, train

from fedloom import FedloomError

REST_BYTES = 4 * (64 * 16 + 16 + 160 + 10)
FIELDS = {"model": "normed.py:normed", "lr": 0.05}


@pytest.fixture(autouse=True)
def _net() -> None:
    Path("normed.py").write_text(NORMED)


@pytest.mark.parametrize("batch", ["full", 100])
def test_normalizers_stay_with_their_client_and_the_rest_is_fedavg(batch: int | str) -> None:
    run = train("fedbn", batch=batch, rounds=4, workers=2, **FIELDS)
    told = problem(run)
    assert all(len(y) % 100 != 1 for _, y in told.data)  # a lone sample would join the batch before it
    assert any(sum(k in cohort for cohort in told.cohorts) > 1 for k in range(5))  # somebody came back to its own
    w, own = normed_clients(told, (*NORM, *STATISTICS))
    agree(run, w)
    remembered = memories(run)
    assert set(remembered) == {k for cohort in told.cohorts for k in cohort}
    for k, tensors in remembered.items():
        torch.testing.assert_close(tensors["personal"].double(), flat(own[k], NORM), rtol=0, atol=1e-5)
        torch.testing.assert_close(tensors["statistics"].double(), flat(own[k], STATISTICS), rtol=0, atol=1e-5)


def test_the_server_never_holds_a_normalizer() -> None:
    run = train("fedbn", **FIELDS)
    assert distance(run, (*NORM, *STATISTICS)) == 0
    assert all(distance(run, (name,)) > 1e-3 for name in REST if name != "body.1.bias")  # which normalizing cancels
    assert traffic(run) == {(REST_BYTES, REST_BYTES)}
    assert traffic(train("fedavg", rounds=1, **FIELDS)) == {(REST_BYTES + 4 * 64, REST_BYTES + 4 * 64)}


def test_without_running_averages_scale_and_shift_are_kept_all_the_same() -> None:
    run = train("fedbn", bn="batch", **FIELDS)
    w, own = normed_clients(problem(run), NORM)
    agree(run, w)
    for k, tensors in memories(run).items():
        assert set(tensors) == {"personal"}
        torch.testing.assert_close(tensors["personal"].double(), flat(own[k], NORM), rtol=0, atol=1e-5)


def test_each_client_is_tested_with_its_own_normalizers() -> None:
    run = train("fedbn", split="shards:2", fraction=0.8, **FIELDS)
    w, own = normed_clients(problem(run), (*NORM, *STATISTICS))
    expected = []
    for kept, (x, y) in zip(own, own_tests(problem(run)), strict=True):
        mine = {**w, **kept}
        expected.append(share_right(normed(mine, x, Normalizer(mine, "body.2").test), y))
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(expected, abs=1e-9)
    assert run.summary["personal_accuracy"]["mean"] > run.summary["client_accuracy"]["mean"]


def test_convolutional_normalizers_are_known_by_their_type() -> None:
    fields = {"data": {"name": "digits", "resize": 16}, "model": "conv4", "clients": 20, "fraction": 0.05, "rounds": 1}
    run = train("fedbn", epochs=1, batch=64, **fields)
    norms = [name for name in run.weights if name.endswith(("running_mean", "running_var"))]
    norms += [name.replace("running_mean", kind) for name in norms for kind in ("weight", "bias") if "mean" in name]
    assert len(norms) == 4 * 4
    assert distance(run, tuple(norms)) == 0
    rest = sum(tensor.numel() for name, tensor in run.weights.items() if name not in norms)
    assert rest == 64 * 10 + 3 * (64 * 64 * 9 + 64) + 64 * 10 + 10
    assert traffic(run) == {(4 * rest, 4 * rest)}
    ((_, tensors),) = memories(run).items()
    assert len(tensors["personal"]) == len(tensors["statistics"]) == 4 * 2 * 64
    assert tensors["statistics"].std() > 0.01


def test_a_net_without_normalizers_is_refused() -> None:
    with pytest.raises(FedloomError) as caught:
        train("fedbn", model="mlp")
    assert str(caught.value) == "method: fedbn decides about norm, but this net has no such tensors"


def test_a_normalizer_that_another_part_brings_is_one() -> None:
    run = train("fedbn + gela", lr=0.005, rounds=2)
    assert distance(run, ("body.1.weight", "body.1.bias", "body.1.running_mean", "body.1.running_var")) == 0
    assert traffic(run) == {(4 * 64 * 65, 4 * 64 * 65)}
