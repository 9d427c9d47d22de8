"""The parts of the benchmark that do not depend on how fast this machine is."""

from __future__ import annotations

import pytest

from fedloom.errors import FedloomError
from fedloom.runs.bench import WORKLOADS, bench, operations


def test_operations_of_lenet_are_those_counted_by_hand() -> None:
    # multiply-adds a sample: two convolutions and three matrix products; backward does each twice, but not for the input
    first = 28 * 28 * 64 * 75
    others = 10 * 10 * 64 * 1600 + 1600 * 384 + 384 * 192 + 192 * 10
    assert operations(WORKLOADS[0]) == 2 * (2 * first + 3 * others)


def test_an_unknown_workload_is_refused_by_name() -> None:
    with pytest.raises(FedloomError, match="lenet, cnn, mobilenet"):
        bench(1.0, "alexnet", "fp32", lambda text: None)


@pytest.mark.slow
def test_a_short_bench_fills_every_column() -> None:
    (row,) = bench(0.1, "cnn", "fp32", lambda text: None)
    assert len(row) == 8
    assert all(value.strip() for value in row.values())
