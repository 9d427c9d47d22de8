"""Shares of an average with a bound."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import fedloom as fl
from fedloom.engine.server.shares import bounded, client_shares
from fedloom.errors import FedloomError
from fedloom.recipe import recipe


def test_without_a_bound_shares_are_the_samples_over_their_sum_to_the_bit() -> None:
    samples = [3, 7, 11, 1]
    assert client_shares(samples, recipe({})) == [3 / 22, 7 / 22, 11 / 22, 1 / 22]
    assert client_shares(samples, recipe({"weighting": "uniform"})) == [1 / 4] * 4


def test_no_share_exceeds_the_bound_and_the_others_keep_their_proportions() -> None:
    random = Random(3)
    for _ in range(500):
        count, most = random.randrange(1, 30), random.random()
        samples = [random.choice((1, 10, 500, 10**6, 10**9)) for _ in range(count)]
        shares = client_shares(samples, recipe({"deploy": {"max_share": most}}))
        assert sum(shares) == pytest.approx(1, abs=1e-12)
        assert max(shares) <= max(most, 1 / count) + 1e-12
        below = [(share, size) for share, size in zip(shares, samples, strict=True) if share < most - 1e-12]
        if count * most > 1:
            for share, size in below:
                assert share / size == pytest.approx(below[0][0] / below[0][1])
                assert share >= size / sum(samples) - 1e-12  # nobody but those above the bound loses


def test_clients_without_samples_take_what_is_left_alike() -> None:
    assert bounded([1.0, 0.0, 0.0], 0.5) == [0.5, 0.25, 0.25]


def test_a_large_client_moves_the_average_no_further_than_the_bound_lets_it(tmp_path: Path) -> None:
    """One round of fedavg on an uneven split, computed again from single clients' weights."""
    fields = {"split": "quantity:0.1", "clients": 4, "model": "linear", "rounds": 1, "fraction": 1.0, "eval_every": 0}
    plain = fl.run(fields, out=str(tmp_path / "plain"))
    even = fl.run(fields, weighting="uniform", out=str(tmp_path / "even"))
    held = fl.run(fields, deploy={"max_share": 0.25}, out=str(tmp_path / "held"))
    some = fl.run(fields, deploy={"max_share": 0.9}, out=str(tmp_path / "some"))
    assert held.summary["digest"] == even.summary["digest"] != plain.summary["digest"]
    assert some.summary["digest"] != even.summary["digest"]


def test_a_bound_is_part_of_the_digest_and_its_absence_is_not() -> None:
    assert recipe({"deploy": {"max_share": 1.0}}).digest() == recipe({}).digest()
    assert recipe({"deploy": {"max_share": 0.5}}).digest() != recipe({}).digest()
    for limit in ("max_samples", "max_classes", "max_message_mb"):
        assert recipe({"deploy": {limit: 77}}).digest() == recipe({}).digest()


def test_a_bound_goes_not_with_masks() -> None:
    with pytest.raises(FedloomError, match=r"deploy.max_share: must be 1 under secure aggregation"):
        recipe({"deploy": {"secure_aggregation": True, "max_share": 0.5}})
