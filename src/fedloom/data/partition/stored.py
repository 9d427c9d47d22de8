"""A stored split: file:split.npz, written by `fedloom split -o`, or the partition.npz of a run.

The arrays are used unchanged, after a check against the dataset. If the file records the digest of its dataset, the digest
must match.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedloom.data.partition.partition import Partition, notes
from fedloom.data.partition.partitioner import Partitioner, Request
from fedloom.data.scheme import register
from fedloom.errors import FedloomError
from fedloom.paths import expanded


@register
@dataclass(frozen=True)
class Stored(Partitioner):
    path: str

    name: ClassVar[str] = "file"
    summary: ClassVar[str] = "a stored split: written by fedloom split -o, or the partition.npz of a run"
    example: ClassVar[str] = "file:split.npz"

    def partition(self, request: Request) -> Partition:
        path, dataset = expanded(self.path, "file"), request.dataset
        recorded = notes(path)
        if recorded.get("data_digest", dataset.digest) != dataset.digest:
            raise FedloomError(
                f"split {self}: it was made for other data than {dataset.name} ({recorded.get('data', 'another dataset')})"
            )
        partition = Partition.load(path, dataset)
        if partition.clients != request.clients:
            raise FedloomError(f"split {self} is for {partition.clients} clients, not for {request.clients}")
        sizes = np.diff(partition.train_offsets)
        if not sizes.all():
            raise FedloomError(f"split {self}: client {int(sizes.argmin())} has no training samples")
        if len(np.unique(partition.train_index)) < len(partition.train_index):
            raise FedloomError(f"split {self}: two clients hold the same training sample")
        for client in range(partition.clients):
            if len(np.unique(partition.test(client))) < len(partition.test(client)):
                raise FedloomError(f"split {self}: client {client} holds a test sample twice")
        if not np.isin(partition.train_index, request.pool).all():
            raise FedloomError(f"split {self}: a client holds an image that is held back for validation")
        return partition.with_tests(request.test_pool)
