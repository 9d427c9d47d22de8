"""Whether an ordering holds: noise of one seed and of several."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scipy import stats

from fedloom.papers import table_cells
from fedloom.studies.reproduce import CellOutcome, Verdict, compared, marks, noise, orderings

CELLS = {
    c.labels["method"]: c
    for c in table_cells("fedbabu", "table5")
    if (c.labels["s"], c.labels["epochs"]) == ("10", "1")
}
AVG, BABU = CELLS["FedAvg"], CELLS["FedBABU"]  # 27.43 and 63.29


def test_one_seed_is_judged_by_the_size_of_the_test_set() -> None:
    one, other = CellOutcome(BABU, (52.0,), 10_000), CellOutcome(AVG, (50.0,), 10_000)
    assert noise(one, other) == pytest.approx(2 * 100 * math.sqrt(0.52 * 0.48 / 1e4 + 0.5 * 0.5 / 1e4))
    assert compared(one, other) is Verdict.HOLDS
    assert compared(CellOutcome(BABU, (48.0,), 10_000), other) is Verdict.REVERSED
    assert compared(CellOutcome(BABU, (52.0,), 1_000), CellOutcome(AVG, (50.0,), 1_000)) is Verdict.NOISE


def test_one_seed_is_no_closer_to_another_than_the_papers_seeds_are() -> None:
    cells = {c.name: c for c in table_cells("feddrplus", "table3") if c.labels.get("s") == "20" and c.block == 0}
    scaffold, avg = cells["SCAFFOLD"], cells["FedAvg"]  # 48.15 ± 1.21 and 42.25 ± 1.42 over 3 seeds
    one, other = CellOutcome(scaffold, (45.0,), 10_000), CellOutcome(avg, (42.0,), 10_000)
    sampling = 1e4 * (0.45 * 0.55 + 0.42 * 0.58) / 1e4
    assert noise(one, other) == pytest.approx(2 * math.sqrt(sampling + 1.21**2 + 1.42**2))
    assert compared(one, other) is Verdict.NOISE
    assert AVG.deviation is not None and AVG.seed_deviation is None  # over clients


def test_several_seeds_are_judged_by_their_deviation() -> None:
    high, low = (60.0, 62.0, 64.0), (50.0, 55.0, 63.0)
    one, other = CellOutcome(BABU, high, 10_000), CellOutcome(AVG, low, 10_000)
    interval = stats.ttest_ind(high, low, equal_var=False).confidence_interval()
    assert noise(one, other) == pytest.approx((interval.high - interval.low) / 2)
    assert compared(one, other) is Verdict.NOISE
    assert compared(CellOutcome(BABU, (70.0, 71.0, 72.0), 10_000), other) is Verdict.NOISE
    assert (
        compared(CellOutcome(BABU, (80.0, 81.0, 82.0), 10_000), CellOutcome(AVG, (50.0, 51.0, 52.0))) is Verdict.HOLDS
    )


def test_a_diverged_cell_is_below_every_number_and_a_missing_one_is_not_judged() -> None:
    assert compared(CellOutcome(BABU, (30.0,), 100), CellOutcome(AVG, failure="diverged in round 2")) is Verdict.HOLDS
    assert compared(CellOutcome(BABU, failure="diverged in round 2"), CellOutcome(AVG, (9.0,), 100)) is Verdict.REVERSED
    assert compared(CellOutcome(BABU, (30.0,), 100), CellOutcome(AVG)) is Verdict.UNKNOWN
    assert orderings([CellOutcome(BABU, (30.0,), 100), CellOutcome(AVG)], "method") == []


def test_a_run_that_failed_for_another_reason_says_nothing_about_the_method() -> None:
    missing = CellOutcome(AVG, failure="data: hf:uoft-cs/cifar10 cannot be loaded")
    assert compared(CellOutcome(BABU, (30.0,), 100), missing) is Verdict.UNKNOWN
    both = [CellOutcome(BABU, failure="no space left"), missing]
    assert orderings(both, "method") == [] and marks(both, "method") == {}


def test_orders_are_counted_by_pairs_of_one_setting() -> None:
    third = replace(AVG, labels={**AVG.labels, "method": "Third"}, value=40.0)
    outcomes = [
        CellOutcome(BABU, (70.0,), 10_000),
        CellOutcome(AVG, (50.0,), 10_000),
        CellOutcome(third, (20.0,), 10_000),
    ]
    (order,) = orderings(outcomes, "method")
    assert (order.holds, order.reversed, order.noise) == (2, 1, 0)
    assert order.published == ("FedBABU", "Third", "FedAvg") and order.ours == ("FedBABU", "FedAvg", "Third")
    assert marks(outcomes, "method") == {
        BABU.id: Verdict.HOLDS,
        AVG.id: Verdict.HOLDS,
        third.id: Verdict.HOLDS,
    }
