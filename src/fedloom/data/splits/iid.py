"""Every client holds a random sample of all images: a permutation cut into parts whose sizes differ by at most one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedloom.data.splits.partition import Index, Partition, offsets_of
from fedloom.data.splits.scheme import Owner, Request, register


@register
@dataclass(frozen=True)
class Iid(Owner):
    name: ClassVar[str] = "iid"
    summary: ClassVar[str] = "a random permutation cut into nearly equal parts"
    example: ClassVar[str] = "iid"

    def deal(self, request: Request) -> Partition:
        return Partition(
            request.generator("iid", "train").permutation(request.pool),
            even(len(request.pool), request.clients),
            request.generator("iid", "test").permutation(request.test_pool),
            even(len(request.test_pool), request.clients),
        )


def even(count: int, clients: int) -> Index:
    return offsets_of(count // clients + (np.arange(clients) < count % clients))
