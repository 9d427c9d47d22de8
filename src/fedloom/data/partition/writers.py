"""Natural clients: each client holds the images of one writer; clients are ordered by writer number.

With fewer clients than writers, writers are drawn at random and the images of the others are unused. A client's test
images are the test samples of its writer.
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
class Writers(Partitioner):
    name: ClassVar[str] = "writers"
    summary: ClassVar[str] = (
        "natural clients: one writer per client; a random sample if there are more writers than clients"
    )
    paper: ClassVar[str] = "Caldas et al. 2018"
    example: ClassVar[str] = "writers"

    def partition(self, request: Request) -> Partition:
        dataset = request.dataset
        if dataset.train_client is None:
            raise FedloomError(f"split writers: {dataset.name} has no writer labels; use another split")
        writer = dataset.train_client.numpy()[request.pool]
        writers = np.unique(writer)
        if request.clients > len(writers):
            raise FedloomError(
                f"split writers with {request.clients} clients: {dataset.name} has training samples of {len(writers)} "
                f"writers; use at most {len(writers)} clients"
            )
        client_writers = writers
        if request.clients < len(writers):
            client_writers = np.sort(request.generator("writers").choice(writers, request.clients, replace=False))
        test_client = np.full(len(request.test_pool), -1)
        if dataset.test_client is not None:
            test_client = dataset.test_client.numpy()[request.test_pool]
        return Partition(
            *_held_by(request.pool, writer, client_writers), *_held_by(request.test_pool, test_client, client_writers)
        )


def _held_by(pool: Index, writer: Index, client_writers: Index) -> tuple[Index, Index]:
    place = np.minimum(np.searchsorted(client_writers, writer), len(client_writers) - 1)
    held = client_writers[place] == writer
    return group_by_client(pool[held], place[held], len(client_writers))
