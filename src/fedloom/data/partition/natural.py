"""Natural clients: each client holds the samples of one hospital, device or person that the data name (`client`, `writer`).

Clients are ordered by their number in the data. With fewer clients than the data have, some are drawn at random and the
samples of the others are unused. A client's test samples are those of the same natural client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedloom.data.partition.partition import Index, Partition, group_by_client
from fedloom.data.partition.partitioner import Partitioner, Request
from fedloom.data.scheme import register
from fedloom.errors import FedloomError


@register
@dataclass(frozen=True)
class Natural(Partitioner):
    name: ClassVar[str] = "natural"
    summary: ClassVar[str] = "natural clients, as the data name them; a random sample if there are more than clients"
    example: ClassVar[str] = "natural"
    noun: ClassVar[str] = "client"  # what the data's own clients are called

    def partition(self, request: Request) -> Partition:
        dataset = request.dataset
        if dataset.train_client is None:
            raise FedloomError(f"split {self.name}: {dataset.name} has no {self.noun} labels; use another split")
        holder = dataset.train_client.numpy()[request.pool]
        holders = np.unique(holder)
        if request.clients > len(holders):
            raise FedloomError(
                f"split {self.name} with {request.clients} clients: {dataset.name} has training samples of {len(holders)} "
                f"{self.noun}s; use at most {len(holders)} clients"
            )
        drawn = holders
        if request.clients < len(holders):
            # `writers` is the key of splits on record
            drawn = np.sort(request.generator("writers").choice(holders, request.clients, replace=False))
        test_holder = np.full(len(request.test_pool), -1)
        if dataset.test_client is not None:
            test_holder = dataset.test_client.numpy()[request.test_pool]
        return Partition(*_held_by(request.pool, holder, drawn), *_held_by(request.test_pool, test_holder, drawn))


def _held_by(pool: Index, holder: Index, drawn: Index) -> tuple[Index, Index]:
    place = np.minimum(np.searchsorted(drawn, holder), len(drawn) - 1)
    held = drawn[place] == holder
    return group_by_client(pool[held], place[held], len(drawn))
