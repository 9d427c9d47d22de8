"""A split that was stored: file:split.npz, as `fedloom split -o` or a run's partition.npz.

The arrays are used as they are, after a check against the images at hand. Where the file says which images it was made
for, those must be the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedloom.data.splits.partition import Partition, notes
from fedloom.data.splits.scheme import Owner, Request, register
from fedloom.errors import FedloomError
from fedloom.paths import expanded


@register
@dataclass(frozen=True)
class Stored(Owner):
    path: str

    name: ClassVar[str] = "file"
    summary: ClassVar[str] = "a split that was stored by fedloom split -o, or a run's partition.npz"
    example: ClassVar[str] = "file:split.npz"

    def deal(self, request: Request) -> Partition:
        path, images = expanded(self.path, "file"), request.images
        told = notes(path)
        if told.get("data_digest", images.digest) != images.digest:
            raise FedloomError(
                f"split {self}: it was made for other images than {images.name} ({told.get('data', 'another set')})"
            )
        partition = Partition.load(path, images)
        if partition.clients != request.clients:
            raise FedloomError(f"split {self} is for {partition.clients} clients, not for {request.clients}")
        sizes = np.diff(partition.train_offsets)
        if not sizes.all():
            raise FedloomError(f"split {self}: client {int(sizes.argmin())} holds no training image")
        if len(np.unique(partition.train_index)) < len(partition.train_index):
            raise FedloomError(f"split {self}: a training image has two owners")
        for client in range(partition.clients):
            if len(np.unique(partition.test(client))) < len(partition.test(client)):
                raise FedloomError(f"split {self}: client {client} holds a test image twice")
        if not np.isin(partition.train_index, request.pool).all():
            raise FedloomError(f"split {self}: a client holds an image that is held back for validation")
        return partition
