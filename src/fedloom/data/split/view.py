"""One stage of a split: the partition, and each client's view of its samples.

Without shifts, a client's images are rows of the dataset. With shifts, each entry of the partition has an image of its own.
It is computed on first use, by any process, and cached in memory that all workers share. It is a pure function of seed,
client and image, so it does not matter which process computes it, or if two do. It is stored as uint8 if the dataset's
values are 0 to 255 and the shifts keep that range, else as float16.

The pooled test set contains every test sample in use once, as its client sees it. If several clients hold an image, one of
them is drawn; if no client holds it, any client is drawn.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedloom.data.dataset import Dataset
from fedloom.data.partition.partition import Index, Partition
from fedloom.data.scheme import SCHEMES
from fedloom.data.shifts.shift import Part, Pixels, Shift, Viewer
from fedloom.data.spec import NOUNS
from fedloom.errors import FedloomError
from fedloom.io.archives import Array
from fedloom.rng import numpy_generator

BLOCK = 256  # images shifted at a time


@dataclass(frozen=True)
class LabeledSamples:
    """The images x[rows] and their labels y, in the same order."""

    x: Tensor  # N,H,W,C with values 0 to the dataset's scale
    rows: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, some: slice | Tensor) -> LabeledSamples:
        return LabeledSamples(self.x, self.rows[some], self.y[some])


class ClientViews:
    """What each client holds and sees in one stage of a split, which starts with round `begin`."""

    def __init__(
        self,
        begin: int,
        partition: Partition,
        shifts: tuple[Shift, ...],
        dataset: Dataset,
        seed: int,
        tested: Index,
    ) -> None:
        self.begin, self.partition, self.shifts, self.dataset, self.seed = begin, partition, shifts, dataset, seed
        for shift in shifts:
            if shift.changes_inputs and dataset.inputs.kind not in shift.kinds:
                raise FedloomError(_unsuited(shift, dataset))
            shift.check(dataset, partition.clients)
        self._train = self._test = None
        self.tested = tested  # the test samples in use, sorted
        self._row_of = np.arange(len(dataset.test_y))  # row of each test sample as the pooled test set shows it
        if shifts:
            index, client_of = partition.test_index, _client_of(partition.test_offsets)
            self._row_of, unheld, drawn = _pooled_rows(index, len(dataset.test_y), partition.clients, seed)
            self._train = ShiftedImages(self, "train", partition.train_index, _client_of(partition.train_offsets))
            self._test = ShiftedImages(
                self, "test", np.concatenate([index, unheld]), np.concatenate([client_of, drawn])
            )

    def of(self, partition: Partition) -> ClientViews:
        """The same stage with other samples."""
        return ClientViews(self.begin, partition, self.shifts, self.dataset, self.seed, self.tested)

    @property
    def one_view_per_sample(self) -> bool:
        """Whether each test sample looks the same in the pooled test set and to all clients that hold it."""
        if not self.shifts:
            return True
        return bool((self._row_of[self.partition.test_index] == np.arange(len(self.partition.test_index))).all())

    def train(self, client: int) -> LabeledSamples:
        """A client's training samples."""
        if self._train is None:
            return _unchanged(self.dataset.train_x, self.dataset.train_y, self.partition.train(client))
        offsets = self.partition.train_offsets
        return self._train.rows(np.arange(offsets[client], offsets[client + 1]))

    def rows(self, begin: int, end: int) -> LabeledSamples:
        """Training samples begin to end in the order of the partition, each as its client sees it."""
        if self._train is None:
            return _unchanged(self.dataset.train_x, self.dataset.train_y, self.partition.train_index[begin:end])
        return self._train.rows(np.arange(begin, end))

    def by_index(self, index: Index) -> LabeledSamples:
        """These training samples of the dataset, each as its client sees it (the first, if several hold it)."""
        if self._train is None:
            return _unchanged(self.dataset.train_x, self.dataset.train_y, index)
        row = np.zeros(len(self.dataset.train_y), np.int64)
        row[self.partition.train_index[::-1]] = np.arange(len(self.partition.train_index))[::-1]
        return self._train.rows(row[index])

    def train_labels(self) -> list[Index]:
        """Each client's training labels as it sees them; computes no image."""
        return np.split(self.held_labels(), self.partition.train_offsets[1:-1])

    def held_labels(self) -> Index:
        """The same in one array, in the order of the partition: 100,000 small arrays would take ten megabytes."""
        return self.dataset.train_y.numpy()[self.partition.train_index] if self._train is None else self._train.labels

    def test(self, client: int) -> LabeledSamples:
        """A client's test samples."""
        if self._test is None:
            return _unchanged(self.dataset.test_x, self.dataset.test_y, self.partition.test(client))
        offsets = self.partition.test_offsets
        return self._test.rows(np.arange(offsets[client], offsets[client + 1]))

    def pooled(self, begin: int, end: int) -> LabeledSamples:
        """Images begin to end of the pooled test set, in the order of the dataset."""
        index = self.tested[begin:end]
        if self._test is None:
            return _unchanged(self.dataset.test_x, self.dataset.test_y, index)
        return self._test.rows(self._row_of[index])

    def clean(self, begin: int, end: int) -> LabeledSamples:
        """The same images without shifts."""
        return _unchanged(self.dataset.test_x, self.dataset.test_y, self.tested[begin:end])

    def viewer(self, client: int, part: Part) -> Viewer:
        return Viewer(client, self.partition.clients, self.seed, part)

    def shifted(self, client: int, part: Part, index: Index) -> Array:
        """Images of the dataset as a client sees them; not cached."""
        source = self.dataset.train_x if part == "train" else self.dataset.test_x
        center, unit = self._unit
        x: Pixels = (source.numpy()[index] - center) / unit
        for shift in self.shifts:
            x = shift.apply(x, index, self.viewer(client, part))
        levels = x * unit + center
        if self.dtype == np.uint8:
            return np.round(np.clip(levels, 0, 255)).astype(np.uint8)
        return levels.astype(self.dtype)

    @property
    def _unit(self) -> tuple[Array | float, Array | float]:
        """What shifts call 0 and 1: of images 0 and the scale, of features mean and deviation."""
        dataset = self.dataset
        if dataset.inputs.kind == "image":
            return 0.0, dataset.scale
        shape = (-1, *[1] * (len(dataset.shape) - 1))
        return np.array(dataset.mean).reshape(shape), np.array(dataset.std).reshape(shape)

    @property
    def dtype(self) -> type[np.generic]:
        """Of the cached samples."""
        if self.dataset.inputs.dtype != "uint8":
            return np.float32
        fits = self.dataset.scale == 255 and not any(shift.leaves_range for shift in self.shifts)
        return np.uint8 if fits else np.float16


class ShiftedImages:
    """Rows of samples, each as one client sees it; computed on first use and cached in shared memory."""

    def __init__(self, views: ClientViews, part: Part, index: Index, client_of: Index) -> None:
        self._views, self._part, self._index, self._client_of = views, part, index, client_of
        dataset = views.dataset
        source, y = (dataset.train_x, dataset.train_y) if part == "train" else (dataset.test_x, dataset.test_y)
        self.labels = np.asarray(y.numpy()[index])
        for shift in views.shifts:
            if shift.changes_labels:
                self._relabel(shift)
        self._source: Tensor | None = None
        if not any(shift.changes_inputs for shift in views.shifts):
            self._source = source
            return
        shape = (len(index), *source.shape[1:])
        self._x = _shared_zeros(shape, views.dtype)
        self._ready = _shared_zeros(shape[:1], np.uint8)

    def rows(self, rows: Index) -> LabeledSamples:
        y = torch.from_numpy(self.labels[rows])
        if self._source is not None:
            return LabeledSamples(self._source, torch.from_numpy(self._index[rows]), y)
        missing = rows[self._ready[rows] == 0]
        for client in np.unique(self._client_of[missing]):
            own = missing[self._client_of[missing] == client]
            for begin in range(0, len(own), BLOCK):
                block = own[begin : begin + BLOCK]
                self._x[block] = self._views.shifted(int(client), self._part, self._index[block])
                self._ready[block] = 1  # after the image is complete: another worker may read at any moment
        return LabeledSamples(torch.from_numpy(self._x), torch.from_numpy(rows), y)

    def _relabel(self, shift: Shift) -> None:
        classes = self._views.dataset.classes
        order = np.argsort(self._client_of, kind="stable")
        for own in np.split(order, np.flatnonzero(np.diff(self._client_of[order])) + 1):
            if len(own):
                viewer = self._views.viewer(int(self._client_of[own[0]]), self._part)
                self.labels[own] = shift.relabel(self.labels[own], classes, viewer)


def _pooled_rows(index: Index, count: int, clients: int, seed: int) -> tuple[Index, Index, Index]:
    """A row for every test sample: one of the rows of `index`, or an additional one if no client holds the image.

    Returns the rows; the images of the additional rows; and the client drawn for each of those.
    """
    generator = numpy_generator(seed, "split", "pooled")
    row = np.full(count, -1)
    order = generator.permutation(len(index))
    row[index[order]] = order
    unheld = np.flatnonzero(row < 0)
    row[unheld] = len(index) + np.arange(len(unheld))
    return row, unheld, generator.integers(clients, size=len(unheld))


def _client_of(offsets: Index) -> Index:
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _unsuited(shift: Shift, dataset: Dataset) -> str:
    """Why a shift does not apply to inputs of this kind, and which shifts do."""
    kind = dataset.inputs.kind
    shifts = [scheme for scheme in SCHEMES.values() if issubclass(scheme, Shift)]
    suited = sorted(s.example for s in shifts if kind in s.kinds or s.apply is Shift.apply)
    changed = " or ".join(NOUNS[each] for each in shift.kinds)
    return f"split {shift} changes {changed}; {dataset.name} holds {NOUNS[kind]}: choose {' or '.join(suited)}"


def _unchanged(x: Tensor, y: Tensor, index: Index) -> LabeledSamples:
    rows = torch.from_numpy(index)
    return LabeledSamples(x, rows, y[rows])


def _shared_zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> Array:
    """Zeros shared by this process and its forks; untouched pages take no memory."""
    count = int(np.prod(shape))
    memory = mmap.mmap(-1, max(count * np.dtype(dtype).itemsize, 1))
    return np.frombuffer(memory, dtype=dtype, count=count).reshape(shape)
