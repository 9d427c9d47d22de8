"""shards:S+quantity:B: every client has S classes, and each class is divided among its holders by shares from Dir(B).

The mixed skew of FNR-FL (S = 2, B = 0.5). The table of classes is that of shards:S, with entries exchanged until no
client has a class twice (where S is not more than the number of classes). For each class p ~ Dir(B) over its SN/C
entries cuts its shuffled images; all of it is drawn again until every client holds 10 images and every entry one. The
test images of a class are cut by the same shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import ClassVar

import numpy as np

from fedloom.data.sets import ImageSet
from fedloom.data.splits.draws import SMALLEST, places, proportions, settle
from fedloom.data.splits.partition import Index, Partition, by_owner
from fedloom.data.splits.quantity import Quantity
from fedloom.data.splits.scheme import Owner, Request, larger
from fedloom.data.splits.shards import Shards


@dataclass(frozen=True)
class Uneven(Owner):
    shards: int
    concentration: float

    name: ClassVar[str] = "shards+quantity"
    summary: ClassVar[str] = "S classes a client, each divided among its holders by shares from Dir(B)"
    paper: ClassVar[str] = "FNR-FL 2024"
    example: ClassVar[str] = "shards:2+quantity:0.5"

    def __str__(self) -> str:
        return f"{Shards(self.shards)}+{Quantity(self.concentration)}"

    def milder(self) -> Iterator[Owner]:
        return larger(self, "concentration")

    def client_step(self, images: ImageSet) -> int:
        return images.classes // gcd(self.shards, images.classes)

    def deal(self, request: Request) -> Partition:
        table = _distinct(Shards(self.shards).table(request), self.shards, request)
        sizes = np.bincount(request.train_y, minlength=request.classes)
        each = len(table) // request.classes
        shares = settle(self, request, "uneven", 1000, lambda draw: self._attempt(draw, table, sizes, each))
        train, train_offsets = self._part(request, "train", table, shares, request.train_y)
        test, test_offsets = self._part(request, "test", table, shares, request.test_y)
        return Partition(request.pool[train], train_offsets, request.test_pool[test], test_offsets)

    def _attempt(self, generator: np.random.Generator, table: Index, sizes: Index, each: int) -> np.ndarray | None:
        """Shares by class and entry; entries of a class are those of the table, in order."""
        shares = generator.dirichlet(np.full(each, self.concentration), len(sizes))
        if not (shares.sum(1) > 0).all():
            return None
        held = np.zeros(len(table), np.int64)
        for number, size in enumerate(sizes):
            held[table == number] = proportions(shares[number], size)
        enough = held.min() >= 1 and held.reshape(-1, self.shards).sum(1).min() >= SMALLEST
        return shares if enough else None

    def _part(self, request: Request, part: str, table: Index, shares: np.ndarray, y: Index) -> tuple[Index, Index]:
        generator = request.generator("uneven", part)
        index, entry = [], []
        for number, there in enumerate(places(y, request.classes)):
            index.append(generator.permutation(there))
            entry.append(np.repeat(np.flatnonzero(table == number), proportions(shares[number], len(there))))
        chosen, offsets = by_owner(np.concatenate(index), np.concatenate(entry), len(table))
        return chosen, offsets[:: self.shards]


def _distinct(table: Index, shards: int, request: Request) -> Index:
    """The table with entries exchanged between clients until nobody has a class twice."""
    if shards > request.classes:
        return table
    generator = request.generator("uneven", "classes")
    rows = table.reshape(-1, shards).copy()
    for _ in range(100):
        twice = [k for k, row in enumerate(rows) if len(set(row.tolist())) < shards]
        if not twice:
            return rows.reshape(-1)
        for k in twice:
            for place in range(1, shards):
                if rows[k, place] in rows[k, :place]:
                    _exchange(rows, k, place, generator)
    return np.tile(generator.permutation(request.classes), len(table) // request.classes)  # in turn, so never twice


def _exchange(rows: Index, k: int, place: int, generator: np.random.Generator) -> None:
    """With an entry elsewhere that is new here, and in a row that lacks this one if there is such a row."""
    mine = rows[k, place]
    new_here = ~np.isin(rows, rows[k])
    fits = np.argwhere(new_here & ~(rows == mine).any(1, keepdims=True))
    fits = fits if len(fits) else np.argwhere(new_here)
    other = tuple(fits[generator.integers(len(fits))])
    rows[k, place], rows[other] = rows[other], mine
