"""Concept shift: a share of the clients call some classes by each other's names.

round(SHARE N) clients are drawn. Each draws C' classes (half of them, at least two, or as a second number says) in
random order c_1, c_2, …, and says c_2 for c_1, c_3 for c_2, and so on in a circle: on its training and its test images
alike. No model can please everyone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from fedloom.data.sets import ImageSet
from fedloom.data.splits.partition import Index
from fedloom.data.splits.scheme import Change, Viewer, register
from fedloom.errors import FedloomError
from fedloom.keys import numpy_generator


@lru_cache(maxsize=8)
def _drawn(seed: int, clients: int, count: int) -> frozenset[int]:
    """The clients that exchange labels."""
    return frozenset(numpy_generator(seed, "split", "permute").permutation(clients)[:count].tolist())


@register
@dataclass(frozen=True)
class Permute(Change):
    share: float
    classes: int | None = None

    name: ClassVar[str] = "permute"
    summary: ClassVar[str] = "a SHARE of clients exchange the labels of half of the classes, or permute:SHARE:CLASSES"
    paper: ClassVar[str] = "Sattler et al. 2021"
    example: ClassVar[str] = "permute:0.5"
    order: ClassVar[int] = 5
    pictures: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise FedloomError(f"split {self}: the share of clients must be 0 to 1; write {self.example}")
        if self.classes is not None and self.classes < 2:
            raise FedloomError(f"split {self}: at least two classes exchange their labels; write permute:0.5:2")

    def check(self, images: ImageSet, clients: int) -> None:
        if images.classes < 2 or (self.classes or 2) > images.classes:
            raise FedloomError(
                f"split {self}: {images.name} has {images.classes} classes; two of them or more are needed"
            )

    def labels(self, y: Index, classes: int, viewer: Viewer) -> Index:
        return self.names(classes, viewer)[y]

    def names(self, classes: int, viewer: Viewer) -> Index:
        """What this client calls each class."""
        names = np.arange(classes)
        if viewer.client in _drawn(viewer.seed, viewer.clients, round(self.share * viewer.clients)):
            some = self.classes or max(2, classes // 2)
            circle = numpy_generator(viewer.seed, "split", self.name, viewer.client).permutation(classes)[:some]
            names[circle] = np.roll(circle, -1)
        return names

    def told(self, viewer: Viewer, images: ImageSet) -> str:
        names = self.names(images.classes, viewer)
        moved = np.flatnonzero(names != np.arange(images.classes))
        shown = ", ".join(f"{images.class_names[c]}→{images.class_names[names[c]]}" for c in moved[:3])
        return f"{shown}{' …' if len(moved) > 3 else ''}" if len(moved) else "own labels"
