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
