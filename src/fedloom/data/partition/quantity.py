"""Quantity skew: random samples of different sizes, with shares drawn from Dir(B) and at least 10 images each.

As in FNR-FL and NIID-Bench. The test samples are cut by the same shares. In a sum with shards:S each client also has at
most S classes: see uneven.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedloom.data.partition.draws import SMALLEST, Concentrated, counts_by_shares, draw_until_valid
from fedloom.data.partition.iid import Iid
from fedloom.data.partition.partition import Partition, offsets_of
from fedloom.data.partition.partitioner import Partitioner, Request, sum_rule
from fedloom.data.scheme import register


@register
@dataclass(frozen=True)
class Quantity(Concentrated):
    name: ClassVar[str] = "quantity"
    summary: ClassVar[str] = (
        "a random permutation cut by shares drawn from Dir(B); shards:S+quantity:B cuts each class by shares"
    )
    paper: ClassVar[str] = "Li et al. 2022"
    example: ClassVar[str] = "quantity:0.5"

    def partition(self, request: Request) -> Partition:
        shares = draw_until_valid(self, request, "quantity", 2000, lambda draw: self._attempt(draw, request))
        return Partition(
            request.generator("quantity", "train").permutation(request.pool),
            offsets_of(counts_by_shares(shares, len(request.pool))),
            request.generator("quantity", "test").permutation(request.test_pool),
            offsets_of(counts_by_shares(shares, len(request.test_pool))),
        )

    def _attempt(self, generator: np.random.Generator, request: Request) -> np.ndarray | None:
        shares = generator.dirichlet(np.full(request.clients, self.concentration))
        if not shares.sum() > 0:
            return None
        return shares if counts_by_shares(shares, len(request.pool)).min() >= SMALLEST else None


@sum_rule
def _uneven_iid(one: Partitioner, other: Partitioner) -> Partitioner | None:
    """iid+quantity is the same as quantity alone."""
    return other if isinstance(one, Iid) and isinstance(other, Quantity) else None
