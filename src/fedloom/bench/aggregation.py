"""Aggregation: the main process checks the uploads of a cohort and averages them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

import torch

from fedloom.bench.figure import Effort, Figure
from fedloom.engine.server.aggregation import flaw, is_finite, weighted_sum
from fedloom.engine.tensor_layout import TensorLayout
from fedloom.engine.threads import one_thread

CLIENTS, PARAMETERS = 10, 10_000_000


def aggregation(effort: Effort, _: Callable[[str], None]) -> Iterator[Figure]:
    uploads = [torch.randn(PARAMETERS) for _ in range(CLIENTS)]
    layout, mean = TensorLayout({"w": uploads[0]}), torch.zeros(PARAMETERS)
    seconds: list[float] = []
    with one_thread():
        for _turn in range(3 if effort.quick else 7):
            began = time.perf_counter()
            assert all(flaw(layout, {"w": upload}) is None for upload in uploads)
            weighted_sum(uploads, [1 / CLIENTS] * CLIENTS, out=mean)
            assert is_finite(mean)
            seconds.append(time.perf_counter() - began)
    title = f"{CLIENTS} clients x {PARAMETERS // 1_000_000} million parameters"
    yield Figure("aggregation", title, median(seconds[1:]), "s", "lower")
