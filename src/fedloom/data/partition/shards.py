"""Sharding: each client holds S shards of one class each, so at most S classes (McMahan et al. 2017; as in FedBABU).

With N clients and C classes, the images of each class, in file order, are cut into SN/C consecutive shards; left-over
images at the end go one each to the first shards. The table [0..C-1] * (SN/C) is shuffled and reshaped to N x S: row k
lists the classes of client k, which may contain a class twice. Each entry takes a random remaining shard of its class. The
test samples are cut by the same table, so a client is tested on the classes it trains on.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

import numpy as np

from fedloom.data.partition.partition import Index, Partition, group_by_client
from fedloom.data.partition.partitioner import Partitioner, Request
from fedloom.data.scheme import register
from fedloom.errors import FedloomError


@register
@dataclass(frozen=True)
class Shards(Partitioner):
    shards: int

    name: ClassVar[str] = "shards"
    summary: ClassVar[str] = "each client holds S shards of one class each, so at most S classes"
    paper: ClassVar[str] = "McMahan et al. 2017"
    example: ClassVar[str] = "shards:2"
    divides_domains: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise FedloomError(f"split shards:{self.shards}: a client needs at least one shard; write {self.example}")

    def partition(self, request: Request) -> Partition:
        table = self.table(request)
        train, train_offsets = self._part(request, "train", table, request.train_y)
        test, test_offsets = self._part(request, "test", table, request.test_y)
        return Partition(request.pool[train], train_offsets, request.test_pool[test], test_offsets)

    def table(self, request: Request) -> Index:
        """The class of each entry; entry e belongs to client e // S."""
        table = np.tile(np.arange(request.classes), self._shards_per_class(request))
        request.generator("shards", "classes").shuffle(table)
        return table

    def _part(self, request: Request, part: str, table: Index, y: Index) -> tuple[Index, Index]:
        """Positions in y, grouped by client, and offsets."""
        shards_per_class = len(table) // request.classes
        # Popping a random remaining shard at each entry of a class is a random order of the shards of that class.
        ranks = np.tile(np.arange(shards_per_class), (request.classes, 1))
        shard = request.generator("shards", part).permuted(ranks, axis=1)
        entry_of = np.empty((request.classes, shards_per_class), np.int64)  # indexed by class and shard
        np.put_along_axis(entry_of, shard, np.argsort(table, kind="stable").reshape(request.classes, -1), axis=1)

        order = np.argsort(y, kind="stable")  # by class, in file order
        counts = np.bincount(y, minlength=request.classes)
        rank = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)
        size = (counts // shards_per_class)[y[order]]
        whole = size * shards_per_class
        shard_of = np.where(rank < whole, rank // np.maximum(size, 1), rank - whole)
        entry = entry_of[y[order], shard_of]

        # Grouping by entry also groups by client, and keeps a client's shards in the order of its row.
        index, offsets = group_by_client(order, entry, len(table))
        return index, offsets[:: self.shards]

    def _shards_per_class(self, request: Request) -> int:
        clients, classes = request.clients, request.classes
        counts = np.bincount(request.train_y, minlength=classes)
        most = int(counts.min())  # shards per class
        total = self.shards * clients
        if total % classes == 0 and total // classes <= most:
            return total // classes
        advice = []
        if near := _near(clients, classes // gcd(self.shards, classes), most * classes // self.shards):
            advice.append(f"{self} with {' or '.join(map(str, near))} clients")
        if near := _near(self.shards, classes // gcd(clients, classes), most * classes // clients):
            advice.append(f"{' or '.join(f'shards:{number}' for number in near)} with {clients} clients")
        if total % classes:
            fault = f"{total} shards cannot be taken evenly from {classes} classes"
        else:
            scarce = int(counts.argmin())
            fault = f"class {scarce} has {most} training samples for {total // classes} shards"
        instead = ", or ".join(advice) or "a dataset with more images of each class, or another split"
        raise FedloomError(request.message(self, f"{fault}; what works: {instead}"))


def _near(value: int, step: int, most: int) -> list[int]:
    """The multiples of `step` nearest to `value`, from below and above, up to `most`."""
    below = min(value, most) // step * step
    return [number for number in (below, below + step) if 0 < number <= most]
