"""Clients hold random samples of very different sizes: shares of a permutation drawn from Dir(B), at least 10 images.

As the quantity skew of FNR-FL and NIID-Bench. The test images are cut by the same shares. In a sum with shards:S the
classes of a client are limited as well: see uneven.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

import numpy as np

from fedloom.data.splits.draws import SMALLEST, proportions, settle
from fedloom.data.splits.partition import Partition, offsets_of
from fedloom.data.splits.scheme import Owner, Request, larger, register
from fedloom.errors import FedloomError


@register
@dataclass(frozen=True)
class Quantity(Owner):
    concentration: float

    name: ClassVar[str] = "quantity"
    summary: ClassVar[str] = "a random permutation cut by shares from Dir(B); with shards:S each class is cut so"
    paper: ClassVar[str] = "Li et al. 2022"
    example: ClassVar[str] = "quantity:0.5"

    def __post_init__(self) -> None:
        if not (self.concentration > 0 and isfinite(self.concentration)):
            raise FedloomError(f"split {self}: the concentration must be a number above 0; write {self.example}")

    def milder(self) -> Iterator[Owner]:
        return larger(self, "concentration")

    def deal(self, request: Request) -> Partition:
        shares = settle(self, request, "quantity", 2000, lambda draw: self._attempt(draw, request))
        return Partition(
            request.generator("quantity", "train").permutation(request.pool),
            offsets_of(proportions(shares, len(request.pool))),
            request.generator("quantity", "test").permutation(request.test_pool),
            offsets_of(proportions(shares, len(request.test_pool))),
        )

    def _attempt(self, generator: np.random.Generator, request: Request) -> np.ndarray | None:
        shares = generator.dirichlet(np.full(request.clients, self.concentration))
        if not shares.sum() > 0:
            return None
        return shares if proportions(shares, len(request.pool)).min() >= SMALLEST else None
