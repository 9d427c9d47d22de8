"""Cost from the lines of rounds.jsonl."""

from __future__ import annotations

import pytest

from fedloom.analysis.cost import cost


def line(number: int, accuracy: float | None) -> dict[str, float]:
    told = {"round": number, "seconds": 2.0, "bytes_down": 3_000_000, "bytes_up": 1_000_000}
    return told if accuracy is None else {**told, "test_accuracy": accuracy}


def test_kappa_and_rho_are_accuracy_per_second_and_megabyte() -> None:
    found = cost([line(1, 0.3), line(2, 0.5)], ())
    assert found["seconds"] == 4 and found["megabytes"] == 8
    assert (found["megabytes_down"], found["megabytes_up"]) == (6, 2)
    assert found["kappa"] == pytest.approx(0.5 * 1e4 / 4)
    assert found["rho"] == pytest.approx(0.5 * 1e4 / 8)


def test_a_target_is_reached_in_the_first_round_that_was_tested_and_good_enough() -> None:
    rounds = [line(1, 0.3), line(2, None), line(3, 0.6), line(4, 0.5), line(5, 0.7)]
    low, high, never = cost(rounds, [0.9, 0.5, 0.7])["targets"]
    assert low == {"target": 0.5, "round": 3, "seconds": 6.0, "megabytes": 12.0}
    assert high["round"] == 5
    assert never == {"target": 0.9, "round": None, "seconds": None, "megabytes": None}


def test_what_costs_nothing_has_no_ratio() -> None:
    free = [{"round": 1, "seconds": 1.0, "bytes_down": 0, "bytes_up": 0, "test_accuracy": 0.2}]
    assert cost(free, ())["rho"] is None


def test_a_target_of_a_loss_is_reached_from_above_and_without_accuracy_there_is_no_kappa() -> None:
    losses = [2.0, 1.2, 1.4, 0.8]
    rounds = [
        {"round": k + 1, "seconds": 1.0, "bytes_down": 10**6, "bytes_up": 0, "test_loss": loss}
        for k, loss in enumerate(losses)
    ]
    section = cost(rounds, [1.3, 0.8, 0.5], "loss")
    assert [(t["target"], t["round"], t["megabytes"]) for t in section["targets"]] == [
        (1.3, 2, 2.0),
        (0.8, 4, 4.0),
        (0.5, None, None),
    ]
    assert section["test_loss"] == 0.8 and section["kappa"] is section["rho"] is None
    by_default = [target["target"] for target in cost(rounds, None, "loss")["targets"]]
    assert by_default == sorted(by_default, reverse=True) and by_default[-1] == 0.8
    assert cost(rounds, None, "loss")["targets"][-1]["round"] == 4
