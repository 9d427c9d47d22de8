"""One stage of a split: who holds what, and what each holder sees.

Without changes a client's images are those of the set, by index. With changes each row of a partition has a picture of
its own: made when it is first asked for, by whichever process asks, and kept in memory that all lanes share. It is a
pure function of seed, client and image, so it does not matter who makes it, or if two do. Kept are whole levels (uint8)
where the values are 0 to 255 and stay there, half-precision numbers otherwise.

The pooled test set is every test image once, as its holder sees it. Of several holders one is drawn; an image that
nobody holds is seen by a client that is drawn.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedloom.data.arrays import Array
from fedloom.data.sets import ImageSet
from fedloom.data.splits.partition import Index, Partition
from fedloom.data.splits.scheme import Change, Part, Pixels, Viewer
from fedloom.keys import numpy_generator

BLOCK = 256  # images changed at once


@dataclass(frozen=True)
class Pictures:
    """Some images as somebody sees them: x[rows] with labels y, in the same order."""

    x: Tensor  # N,H,W,C with values 0 to the set's scale
    rows: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, some: slice | Tensor) -> Pictures:
        return Pictures(self.x, self.rows[some], self.y[some])


class Holding:
    """`begin`: the first round it is for."""

    def __init__(
        self, begin: int, partition: Partition, changes: tuple[Change, ...], images: ImageSet, seed: int
    ) -> None:
        self.begin, self.partition, self.changes, self.images, self.seed = begin, partition, changes, images, seed
        for change in changes:
            change.check(images, partition.clients)
        self._train = self._test = None
        self.pooled_rows = np.arange(len(images.test_y))
        if changes:
            index, viewer = partition.test_index, _owners(partition.test_offsets)
            self.pooled_rows, more, by = _seen_once(index, len(images.test_y), partition.clients, seed)
            self._train = Seen(self, "train", partition.train_index, _owners(partition.train_offsets))
            self._test = Seen(self, "test", np.concatenate([index, more]), np.concatenate([viewer, by]))

    @property
    def each_once(self) -> bool:
        """Whether a test image looks in the pooled test set as it does to all its holders."""
        if not self.changes:
            return True
        return bool((self.pooled_rows[self.partition.test_index] == np.arange(len(self.partition.test_index))).all())

    def train(self, client: int) -> Pictures:
        """What a client trains on."""
        if self._train is None:
            return _plain(self.images.train_x, self.images.train_y, self.partition.train(client))
        offsets = self.partition.train_offsets
        return self._train.rows(np.arange(offsets[client], offsets[client + 1]))

    def by_image(self, index: Index) -> Pictures:
        """These training images, each as its holder sees it (the first, if it has several)."""
        if self._train is None:
            return _plain(self.images.train_x, self.images.train_y, index)
        row = np.zeros(len(self.images.train_y), np.int64)
        row[self.partition.train_index[::-1]] = np.arange(len(self.partition.train_index))[::-1]
        return self._train.rows(row[index])

    def train_labels(self) -> list[Index]:
        """Of every client's training images, as it calls them; makes no picture."""
        return np.split(self.held_labels(), self.partition.train_offsets[1:-1])

    def held_labels(self) -> Index:
        """The same in one array, in the order of the partition: a hundred thousand small ones take ten megabytes."""
        return self.images.train_y.numpy()[self.partition.train_index] if self._train is None else self._train.labels

    def test(self, client: int) -> Pictures:
        """A client's own test images."""
        if self._test is None:
            return _plain(self.images.test_x, self.images.test_y, self.partition.test(client))
        offsets = self.partition.test_offsets
        return self._test.rows(np.arange(offsets[client], offsets[client + 1]))

    def pooled(self, begin: int, end: int) -> Pictures:
        """These images of the pooled test set, in the order of the set."""
        if self._test is None:
            return _plain(self.images.test_x, self.images.test_y, np.arange(begin, end))
        return self._test.rows(self.pooled_rows[begin:end])

    def clean(self, begin: int, end: int) -> Pictures:
        """The same as they are in the set."""
        return _plain(self.images.test_x, self.images.test_y, np.arange(begin, end))

    def viewer(self, client: int, part: Part) -> Viewer:
        return Viewer(client, self.partition.clients, self.seed, part)

    def seen(self, client: int, part: Part, index: Index) -> Array:
        """What a client sees of images of the set, computed afresh."""
        source = self.images.train_x if part == "train" else self.images.test_x
        x: Pixels = source.numpy()[index] / self.images.scale
        for change in self.changes:
            x = change.change(x, index, self.viewer(client, part))
        return self.kept(x)

    def kept(self, x: Pixels) -> Array:
        levels = x * self.images.scale
        if self.dtype == np.uint8:
            return np.round(np.clip(levels, 0, 255)).astype(np.uint8)
        return levels.astype(np.float16)

    @property
    def dtype(self) -> type[np.generic]:
        fits = self.images.scale == 255 and not any(change.beyond for change in self.changes)
        return np.uint8 if fits else np.float16


class Seen:
    """Rows of pictures, each an image as one client sees it; those that were asked for are kept."""

    def __init__(self, holding: Holding, part: Part, index: Index, viewer: Index) -> None:
        self._holding, self._part, self._index, self._viewer = holding, part, index, viewer
        images = holding.images
        source, y = (images.train_x, images.train_y) if part == "train" else (images.test_x, images.test_y)
        self.labels = np.asarray(y.numpy()[index])
        for change in holding.changes:
            if not change.pictures:
                self._relabel(change)
        self._source: Tensor | None = None
        if not any(change.pictures for change in holding.changes):
            self._source = source
            return
        shape = (len(index), *source.shape[1:])
        self._x = _shared(shape, holding.dtype)
        self._ready = _shared(shape[:1], np.uint8)

    def rows(self, rows: Index) -> Pictures:
        y = torch.from_numpy(self.labels[rows])
        if self._source is not None:
            return Pictures(self._source, torch.from_numpy(self._index[rows]), y)
        waiting = rows[self._ready[rows] == 0]
        for client in np.unique(self._viewer[waiting]):
            own = waiting[self._viewer[waiting] == client]
            for begin in range(0, len(own), BLOCK):
                some = own[begin : begin + BLOCK]
                self._x[some] = self._holding.seen(int(client), self._part, self._index[some])
                self._ready[some] = 1  # after the picture: another lane may look at any moment
        return Pictures(torch.from_numpy(self._x), torch.from_numpy(rows), y)

    def _relabel(self, change: Change) -> None:
        classes = self._holding.images.classes
        order = np.argsort(self._viewer, kind="stable")
        for own in np.split(order, np.flatnonzero(np.diff(self._viewer[order])) + 1):
            if len(own):
                viewer = self._holding.viewer(int(self._viewer[own[0]]), self._part)
                self.labels[own] = change.labels(self.labels[own], classes, viewer)


def _seen_once(index: Index, count: int, clients: int, seed: int) -> tuple[Index, Index, Index]:
    """A row for every test image: of those in `index`, or a further one; then what is in the further rows, and by whom
    it is seen."""
    generator = numpy_generator(seed, "split", "pooled")
    row = np.full(count, -1)
    order = generator.permutation(len(index))
    row[index[order]] = order
    nobody = np.flatnonzero(row < 0)
    row[nobody] = len(index) + np.arange(len(nobody))
    return row, nobody, generator.integers(clients, size=len(nobody))


def _owners(offsets: Index) -> Index:
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _plain(x: Tensor, y: Tensor, index: Index) -> Pictures:
    rows = torch.from_numpy(index)
    return Pictures(x, rows, y[rows])


def _shared(shape: tuple[int, ...], dtype: type[np.generic]) -> Array:
    """Zeros that this process and all forked from it share; pages that nobody touches cost nothing."""
    count = int(np.prod(shape))
    room = mmap.mmap(-1, max(count * np.dtype(dtype).itemsize, 1))
    return np.frombuffer(room, dtype=dtype, count=count).reshape(shape)
