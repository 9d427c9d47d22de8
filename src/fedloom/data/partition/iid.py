"""Each client holds a random sample of the data: a permutation cut into parts whose sizes differ by at most one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedloom.data.partition.partition import Index, Partition, offsets_of
from fedloom.data.partition.partitioner import Partitioner, Request
from fedloom.data.scheme import register


@register
@dataclass(frozen=True)
class Iid(Partitioner):
    name: ClassVar[str] = "iid"
    summary: ClassVar[str] = "a random permutation cut into nearly equal parts"
    example: ClassVar[str] = "iid"
    divides_domains: ClassVar[bool] = True

    def partition(self, request: Request) -> Partition:
        return Partition(
            request.generator("iid", "train").permutation(request.pool),
            equal_offsets(len(request.pool), request.clients),
            request.generator("iid", "test").permutation(request.test_pool),
            equal_offsets(len(request.test_pool), request.clients),
        )


def equal_offsets(count: int, clients: int) -> Index:
    return offsets_of(count // clients + (np.arange(clients) < count % clients))
