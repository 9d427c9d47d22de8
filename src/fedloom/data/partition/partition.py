"""Which client holds which samples: two flat index arrays, training and test, with offsets."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.data.dataset import Dataset
from fedloom.errors import FedloomError
from fedloom.io.archives import read_arrays

Index = npt.NDArray[np.int64]
NOTES = ("data", "data_digest", "split", "changes", "seed")


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """Client k holds train_index[train_offsets[k]:train_offsets[k + 1]], and likewise for test samples."""

    train_index: Index
    train_offsets: Index
    test_index: Index
    test_offsets: Index

    def __post_init__(self) -> None:
        for field in fields(self):
            values = np.asarray(getattr(self, field.name))
            if values.ndim != 1 or values.dtype.kind not in "iu":
                raise FedloomError(
                    f"partition: {field.name} is {values.dtype} of shape {values.shape}, not a list of integers"
                )
            object.__setattr__(self, field.name, np.ascontiguousarray(values, dtype=np.int64))
        for part in ("train", "test"):
            index, offsets = getattr(self, f"{part}_index"), getattr(self, f"{part}_offsets")
            if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(index) or (np.diff(offsets) < 0).any():
                raise FedloomError(
                    f"partition: {part}_offsets must rise from 0 to the length of {part}_index, {len(index)}"
                )
            if len(index) and index.min() < 0:
                raise FedloomError(f"partition: {part}_index holds {index.min()}; an index is 0 or more")
        if len(self.train_offsets) != len(self.test_offsets):
            raise FedloomError("partition: train_offsets and test_offsets are for different numbers of clients")

    def __repr__(self) -> str:
        held = f"{len(self.train_index)} training and {len(self.test_index)} test samples"
        return f"Partition({self.clients} clients, {held})"

    @property
    def clients(self) -> int:
        return len(self.train_offsets) - 1

    def train(self, client: int) -> Index:
        return _slice(self.train_index, self.train_offsets, client)

    def test(self, client: int) -> Index:
        return _slice(self.test_index, self.test_offsets, client)

    def with_extra(self, index: Index) -> Partition:
        """The same with extra training samples that every client holds."""
        rows = [np.concatenate((self.train(client), index)) for client in range(self.clients)]
        offsets = offsets_of(np.array([len(row) for row in rows]))
        return Partition(np.concatenate(rows), offsets, self.test_index, self.test_offsets)

    def with_tests(self, pool: Index) -> Partition:
        """The same with those test samples only that are in the pool."""
        kept = np.isin(self.test_index, pool)
        if kept.all():
            return self
        offsets = np.concatenate(([0], np.cumsum(kept)))[self.test_offsets]
        return Partition(self.train_index, self.train_offsets, self.test_index[kept], offsets)

    def arrays(self) -> dict[str, Index]:
        """The arrays by name, as in a file."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def save(self, path: str | Path, **texts: str) -> None:
        """Write an npz file atomically. `texts` are stored with the arrays; `notes` reads them."""
        path = Path(path)
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with draft.open("wb") as file:
                content: dict[str, Any] = self.arrays() | {name: np.array(text) for name, text in texts.items()}
                np.savez(file, **content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path, dataset: Dataset | None = None) -> Partition:
        """Read and check an npz file; with `dataset`, also check that all indices are in range."""
        names = [field.name for field in fields(cls)]
        expected = f"expected an npz file with {', '.join(names)}"
        try:
            archive = read_arrays(Path(path), names)
        except FedloomError as error:
            reason = str(error).removeprefix(str(path)).lstrip(": ").partition(";")[0]
            raise FedloomError(f"{path} is not a partition ({reason}); {expected}") from error
        if missing := [name for name in names if name not in archive]:
            raise FedloomError(f"{path} is not a partition ({missing[0]} is missing); {expected}")
        try:
            partition = cls(*(archive[name] for name in names))
        except FedloomError as error:
            raise FedloomError(f"{path}: {error}") from error
        if dataset is not None:
            for part, index, count in (
                ("train", partition.train_index, len(dataset.train_y)),
                ("test", partition.test_index, len(dataset.test_y)),
            ):
                if len(index) and index.max() >= count:
                    raise FedloomError(
                        f"{path}: {part}_index holds {index.max()}, but {dataset.name} has {count} {part} samples"
                    )
        return partition


def notes(path: str | Path) -> dict[str, str]:
    """The texts stored with a partition: data, data_digest, split, changes, seed; empty if there are none."""
    try:
        texts = read_arrays(Path(path), NOTES)
    except FedloomError:
        return {}  # Partition.load reports what is wrong
    return {name: str(text) for name, text in texts.items() if text.dtype.kind == "U" and text.ndim == 0}


def offsets_of(sizes: npt.NDArray[np.integer]) -> Index:
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def group_by_client(index: Index, client_of: Index, clients: int) -> tuple[Index, Index]:
    """Flat index and offsets, where client_of[i] holds index[i]; a client's samples keep their order."""
    return index[np.argsort(client_of, kind="stable")], offsets_of(np.bincount(client_of, minlength=clients))


def _slice(index: Index, offsets: Index, client: int) -> Index:
    if not 0 <= client < len(offsets) - 1:
        raise IndexError(f"client {client} of {len(offsets) - 1}")
    return index[offsets[client] : offsets[client + 1]]
