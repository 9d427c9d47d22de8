"""Index arrays of the user's own: fl.run(split=[...]), one array of training samples per client, cached by their content.

A client's test samples are those that were given, or else as many of each class as it trains on. Samples that are held back for
validation or as public samples are taken away from the clients.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedloom.data import cache
from fedloom.data.arrays import Content
from fedloom.data.partition.draws import matching_test_images
from fedloom.data.partition.partition import Index, Partition, offsets_of
from fedloom.data.partition.partitioner import Partitioner, Request
from fedloom.data.scheme import register
from fedloom.errors import FedloomError

PURPOSE = "indices"


@register
@dataclass(frozen=True)
class Indices(Partitioner):
    digest: str

    name: ClassVar[str] = "indices"
    summary: ClassVar[str] = "index arrays passed to fl.run(split=...), one per client, read again by their content"
    example: ClassVar[str] = "indices:DIGEST"

    def partition(self, request: Request) -> Partition:
        stored = cache.stored(_folder(self.digest))
        if stored is None:
            raise FedloomError(
                f"split {self}: the cache no longer holds these arrays ({cache.root()}); pass them again, as in "
                "fl.run(split=[...])"
            )
        train, test = (_cut(stored[0], part) for part in ("train", "test"))
        if len(train) != request.clients:
            raise FedloomError(f"split has {len(train)} arrays, one per client, but clients is {request.clients}")
        _check_range(train, "train", len(request.dataset.train_y), request.dataset.name)
        _check_range(test, "test", len(request.dataset.test_y), request.dataset.name)
        held = [rows[np.isin(rows, request.pool)] for rows in train]
        if empty := [client for client, rows in enumerate(held) if not len(rows)]:
            raise FedloomError(f"split: client {empty[0]} has no training sample that is not held back")
        index, offsets = _joined(held)
        if test:
            return Partition(index, offsets, *_joined(test)).with_tests(request.test_pool)
        labels = request.dataset.train_y.numpy()
        counts = np.stack([np.bincount(labels[rows], minlength=request.classes) for rows in held], axis=1)
        return Partition(index, offsets, *matching_test_images(request, PURPOSE, counts))


def store_indices(train: list[Index], test: list[Index]) -> str:
    """Put checked arrays into the cache; returns what a recipe calls them, indices:DIGEST. `test`: empty if not given."""
    content = dict(zip(("train_index", "train_offsets"), _joined(train), strict=True))
    if test:
        content |= dict(zip(("test_index", "test_offsets"), _joined(test), strict=True))
    hasher = hashlib.blake2b(digest_size=10)
    for name, values in content.items():
        hasher.update(f"{name} {len(values)} ".encode())
        hasher.update(values.astype("<i8").tobytes())
    digest = hasher.hexdigest()
    cache.fetch(_folder(digest), lambda: (content, {}))
    return f"{Indices.name}:{digest}"


def _folder(digest: str) -> Path:
    return cache.folder_of("split", "indices", digest)


def _cut(arrays: Content, part: str) -> list[Index]:
    """The array of every client; none if the part was not given."""
    if f"{part}_index" not in arrays:
        return []
    return np.split(np.asarray(arrays[f"{part}_index"], dtype=np.int64), arrays[f"{part}_offsets"][1:-1])


def _joined(rows: list[Index]) -> tuple[Index, Index]:
    return np.concatenate(rows), offsets_of(np.array([len(each) for each in rows]))


def _check_range(rows: list[Index], part: str, count: int, name: str) -> None:
    for client, each in enumerate(rows):
        if len(each) and each.max() >= count:
            raise FedloomError(
                f"split: client {client} holds {part} sample {each.max()}, but {name} has {count}, from 0 to {count - 1}"
            )
