"""LG-FedAvg."""

from __future__ import annotations

import pytest
import torch
from reference import BODY, HEAD, flat
from reference_personal import own_tests, personal, share_right
from reference_regularizers import logits
from tiny import BODY_BYTES, HEAD_BYTES, MODEL_BYTES, agree, distance, memories, problem, traffic, train

from fedloom import FedloomError, Run

BIASES = ("body.1.bias", "head.bias")


def keeps(run: Run, own: list[dict[str, torch.Tensor]], names: tuple[str, ...]) -> None:
    remembered = memories(run)
    assert set(remembered) == {k for cohort in problem(run).cohorts for k in cohort}
    for k, tensors in remembered.items():
        torch.testing.assert_close(tensors["personal"].double(), flat(own[k], names), rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch", ["full", 64])
def test_the_head_is_shared_and_each_client_keeps_its_body(batch: int | str) -> None:
    run = train("lg", rounds=4, batch=batch, workers=2)
    assert any(sum(k in cohort for cohort in problem(run).cohorts) > 1 for k in range(5))
    w, own = personal(problem(run), BODY)
    agree(run, w)
    keeps(run, own, BODY)
    assert distance(run, BODY) == 0 < distance(run, HEAD)
    assert traffic(run) == {(HEAD_BYTES, HEAD_BYTES)}


def test_each_client_is_tested_with_its_own_body() -> None:
    run = train("lgfedavg", split="shards:2", fraction=0.8)
    w, own = personal(problem(run), BODY)
    tests = own_tests(problem(run))
    expected = [share_right(logits({**w, **body}, x), y) for body, (x, y) in zip(own, tests, strict=True)]
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(expected, abs=1e-9)


def test_with_a_shared_body_it_is_fedper_bit_for_bit() -> None:
    run, fedper = train("lg(shared=body)"), train("fedper")
    assert run.summary["digest"] == fedper.summary["digest"]
    heads, expected = memories(run), memories(fedper)
    assert set(heads) == set(expected)
    assert all(torch.equal(heads[k]["personal"], expected[k]["personal"]) for k in heads)
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}


@pytest.mark.parametrize("shared", ["[body.1.weight, head.weight]", "[head.weight, body.1.weight]"])
def test_a_list_shares_what_it_names(shared: str) -> None:
    run = train(f"lg(shared={shared})", rounds=4)
    w, own = personal(problem(run), BIASES)
    agree(run, w)
    keeps(run, own, BIASES)
    assert traffic(run) == {(MODEL_BYTES - 4 * 74, MODEL_BYTES - 4 * 74)}


def test_a_list_may_name_modules() -> None:
    assert train("lg(shared=[head])").summary["digest"] == train("lg").summary["digest"]
    assert train("lg(shared=[body.1])").summary["digest"] == train("lg(shared=body)").summary["digest"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lg(shared=tail)", "method: lg shares tail, which this net does not have"),
        ("lg(shared=[head, body.7])", "method: lg shares body.7, which this net does not have"),
        ("lg(shared=[])", "method: lg(shared=[]) shares nothing; name at least one module, such as head"),
        (
            "lg(shared=[body, head])",
            "method: lg shares everything that is trained, so nothing is personal; leave it out",
        ),
        (
            "dr + lg(shared=body)",
            "method: lg shares everything that is trained, so nothing is personal; leave it out",
        ),
        ("lg + babu", "method: lg and babu both decide what happens to the head; keep one"),
        ("babu + lg", "method: babu and lg both decide what happens to the head; keep one"),
        ("lg + fedper", "method: lg and fedper both decide what happens to the head; keep one"),
        ("fedrep + lg", "method: fedrep and lg both decide what happens to the head; keep one"),
        ("lg + dr", "method: dr fixes head.weight for good, so lg has nothing to decide about it; keep one"),
    ],
)
def test_what_leaves_nothing_to_share_or_nothing_to_keep_is_refused(text: str, said: str) -> None:
    with pytest.raises(FedloomError) as caught:
        train(text)
    assert str(caught.value) == said


def test_what_is_fixed_inside_a_shared_head_is_no_obstacle() -> None:
    run = train("lg + etf", lr=0.3, rounds=1)
    assert traffic(run) == {(4 * 641, 4 * 641)}  # projection and scale, not the simplex
    assert distance(run, ("head.projection.weight",)) > 1e-3
    assert distance(run, ("head.weight",)) == distance(run, BODY) == 0
