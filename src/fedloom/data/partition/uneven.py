"""shards:S+quantity:B: each client has S classes, and each class is divided among its clients by shares from Dir(B).

The mixed skew of FNR-FL (S = 2, B = 0.5). The table of classes is that of shards:S, with entries swapped until no client
has a class twice (if S is at most the number of classes). For each class, p ~ Dir(B) over its SN/C entries cuts its
shuffled images; everything is drawn again until each client holds 10 images and each entry one. The test samples of a class
are cut by the same shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import ClassVar

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.partition.draws import SMALLEST, counts_by_shares, draw_until_valid, indices_by_class
from fedloom.data.partition.partition import Index, Partition, group_by_client
from fedloom.data.partition.partitioner import Partitioner, Request, larger_values, sum_rule
from fedloom.data.partition.quantity import Quantity
from fedloom.data.partition.shards import Shards


@dataclass(frozen=True)
class UnevenShards(Partitioner):
    shards: int
    concentration: float

    name: ClassVar[str] = "shards+quantity"
    summary: ClassVar[str] = "S classes per client, each class divided among its clients by shares from Dir(B)"
    paper: ClassVar[str] = "FNR-FL 2024"
    example: ClassVar[str] = "shards:2+quantity:0.5"
    divides_domains: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"{Shards(self.shards)}+{Quantity(self.concentration)}"

    def milder(self) -> Iterator[Partitioner]:
        return larger_values(self, "concentration")

    def client_step(self, dataset: Dataset) -> int:
        return dataset.classes // gcd(self.shards, dataset.classes)

    def partition(self, request: Request) -> Partition:
        table = _distinct(Shards(self.shards).table(request), self.shards, request)
        sizes = np.bincount(request.train_y, minlength=request.classes)
        entries = len(table) // request.classes
        shares = draw_until_valid(
            self, request, "uneven", 1000, lambda draw: self._attempt(draw, table, sizes, entries)
        )
        train, train_offsets = self._part(request, "train", table, shares, request.train_y)
        test, test_offsets = self._part(request, "test", table, shares, request.test_y)
        return Partition(request.pool[train], train_offsets, request.test_pool[test], test_offsets)

    def _attempt(self, generator: np.random.Generator, table: Index, sizes: Index, entries: int) -> np.ndarray | None:
        """Shares by class and entry; the entries of a class are in the order of the table."""
        shares = generator.dirichlet(np.full(entries, self.concentration), len(sizes))
        if not (shares.sum(1) > 0).all():
            return None
        held = np.zeros(len(table), np.int64)
        for number, size in enumerate(sizes):
            held[table == number] = counts_by_shares(shares[number], size)
        enough = held.min() >= 1 and held.reshape(-1, self.shards).sum(1).min() >= SMALLEST
        return shares if enough else None

    def _part(self, request: Request, part: str, table: Index, shares: np.ndarray, y: Index) -> tuple[Index, Index]:
        generator = request.generator("uneven", part)
        index, entry = [], []
        for number, members in enumerate(indices_by_class(y, request.classes)):
            index.append(generator.permutation(members))
            entry.append(np.repeat(np.flatnonzero(table == number), counts_by_shares(shares[number], len(members))))
        chosen, offsets = group_by_client(np.concatenate(index), np.concatenate(entry), len(table))
        return chosen, offsets[:: self.shards]


@sum_rule
def _shards_of_uneven_size(one: Partitioner, other: Partitioner) -> Partitioner | None:
    if isinstance(one, Shards) and isinstance(other, Quantity):
        return UnevenShards(one.shards, other.concentration)
    return None


def _distinct(table: Index, shards: int, request: Request) -> Index:
    """The table with entries swapped between clients until no client has a class twice."""
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
                    _swap(rows, k, place, generator)
    return np.tile(
        generator.permutation(request.classes), len(table) // request.classes
    )  # classes in turn: never one twice


def _swap(rows: Index, k: int, place: int, generator: np.random.Generator) -> None:
    """Swap an entry with one whose class this row lacks; if possible, from a row that lacks the class of this entry."""
    mine = rows[k, place]
    new_here = ~np.isin(rows, rows[k])
    fits = np.argwhere(new_here & ~(rows == mine).any(1, keepdims=True))
    fits = fits if len(fits) else np.argwhere(new_here)
    other = tuple(fits[generator.integers(len(fits))])
    rows[k, place], rows[other] = rows[other], mine
