"""Concept shift: some clients permute the labels of some classes, so no single model fits all clients.

round(SHARE N) clients are drawn. Each draws C' classes (half of them, at least two; or the second number) in random order
c_1, c_2, …, and relabels c_1 as c_2, c_2 as c_3, and so on in a cycle, in its training and test samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.partition.partition import Index
from fedloom.data.scheme import register
from fedloom.data.shifts.shift import Shift, Step, Viewer
from fedloom.errors import FedloomError
from fedloom.rng import numpy_generator


@lru_cache(maxsize=8)
def _drawn(seed: int, clients: int, count: int) -> frozenset[int]:
    """The clients that permute labels."""
    return frozenset(numpy_generator(seed, "split", "permute").permutation(clients)[:count].tolist())


@register
@dataclass(frozen=True)
class Permute(Shift):
    share: float
    classes: int | None = None

    name: ClassVar[str] = "permute"
    summary: ClassVar[str] = (
        "a SHARE of the clients permutes the labels of half of the classes, or of K with a second number K"
    )
    paper: ClassVar[str] = "Sattler et al. 2021"
    example: ClassVar[str] = "permute:0.5"
    step: ClassVar[Step] = "labels"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise FedloomError(f"split {self}: the share of clients must be 0 to 1; write {self.example}")
        if self.classes is not None and self.classes < 2:
            raise FedloomError(f"split {self}: at least two classes must permute their labels; write permute:0.5:2")

    def check(self, dataset: Dataset, clients: int) -> None:
        if dataset.classes < 2 or (self.classes or 2) > dataset.classes:
            raise FedloomError(
                f"split {self}: {dataset.name} has {dataset.classes} classes; at least {self.classes or 2} are needed"
            )

    def relabel(self, y: Index, classes: int, viewer: Viewer) -> Index:
        return self.new_labels(classes, viewer)[y]

    def new_labels(self, classes: int, viewer: Viewer) -> Index:
        """The label that this client gives to each class."""
        labels = np.arange(classes)
        if viewer.client in _drawn(viewer.seed, viewer.clients, round(self.share * viewer.clients)):
            count = self.classes or max(2, classes // 2)
            cycle = numpy_generator(viewer.seed, "split", self.name, viewer.client).permutation(classes)[:count]
            labels[cycle] = np.roll(cycle, -1)
        return labels

    def describe(self, viewer: Viewer, dataset: Dataset) -> str:
        labels = self.new_labels(dataset.classes, viewer)
        moved = np.flatnonzero(labels != np.arange(dataset.classes))
        shown = ", ".join(f"{dataset.class_names[c]}→{dataset.class_names[labels[c]]}" for c in moved[:3])
        return f"{shown}{' …' if len(moved) > 3 else ''}" if len(moved) else "own labels"
