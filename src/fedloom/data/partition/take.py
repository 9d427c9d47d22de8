"""Each client holds N random training samples and the rest are unused: take:N; domains+take:371 are the digits of FedNN.

Test samples are divided as iid divides them, all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedloom.data.partition.iid import equal_offsets
from fedloom.data.partition.partition import Partition
from fedloom.data.partition.partitioner import Partitioner, Request
from fedloom.data.scheme import register
from fedloom.errors import FedloomError


@register
@dataclass(frozen=True)
class Take(Partitioner):
    samples: int

    name: ClassVar[str] = "take"
    summary: ClassVar[str] = "N random training samples per client, the rest unused; also domains+take:N"
    paper: ClassVar[str] = "FedNN 2024"
    example: ClassVar[str] = "take:100"
    divides_domains: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise FedloomError(f"split {self}: the number of samples must be 1 or more; write {self.example}")

    def partition(self, request: Request) -> Partition:
        wanted, there = self.samples * request.clients, len(request.pool)
        if wanted > there:
            raise FedloomError(
                request.message(self, f"{wanted} training samples are needed and there are {there}; take fewer")
            )
        return Partition(
            request.generator("take", "train").permutation(request.pool)[:wanted],
            self.samples * np.arange(request.clients + 1, dtype=np.int64),
            request.generator("take", "test").permutation(request.test_pool),
            equal_offsets(len(request.test_pool), request.clients),
        )
