"""Image corruptions of CIFAR-10-C: client i sees kind i mod K, at severity 1 to 5.

FedNN calls this concept drift. The kinds are defined in data/corruptions.py; saturate is left out for images with one
channel. Random kinds draw from one generator per (seed, client, image).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.partition.partition import Index
from fedloom.data.scheme import register
from fedloom.data.shifts.shift import Pixels, Shift, Step, Viewer
from fedloom.errors import FedloomError


@register
@dataclass(frozen=True)
class Corrupt(Shift):
    level: int

    name: ClassVar[str] = "corrupt"
    summary: ClassVar[str] = "client i sees corruption i mod 15 of CIFAR-10-C, at severity LEVEL, 1 to 5"
    paper: ClassVar[str] = "Hendrycks and Dietterich 2019"
    example: ClassVar[str] = "corrupt:3"
    step: ClassVar[Step] = "corruption"

    def __post_init__(self) -> None:
        if not 1 <= self.level <= 5:
            raise FedloomError(f"split {self}: the severity must be 1 to 5; write {self.example}")

    def check(self, dataset: Dataset, clients: int) -> None:
        if dataset.shape[0] not in (1, 3):
            raise FedloomError(
                f"split {self} needs images with one or three channels; {dataset.name} has {dataset.shape[0]}"
            )
        if min(dataset.shape[1:]) < 4:
            raise FedloomError(f"split {self} needs images of 4 x 4 pixels or more; {dataset.name} is smaller")
        if find_spec("PIL") is None:
            raise FedloomError(f"split {self} needs pillow, which is missing: pip install pillow")

    def kind(self, viewer: Viewer, channels: int) -> str:
        from fedloom.data.corruptions import COLOR_ONLY, KINDS  # imports scipy.ndimage, which few splits need

        names = [name for name in KINDS if channels == 3 or name not in COLOR_ONLY]
        return names[viewer.client % len(names)]

    def apply(self, x: Pixels, index: Index, viewer: Viewer) -> Pixels:
        from fedloom.data.corruptions import KINDS

        kind = KINDS[self.kind(viewer, x.shape[3])]
        corrupted = (
            kind(image, self.level - 1, viewer.generator(self.name, place))
            for image, place in zip(np.clip(x, 0, 1), index, strict=True)
        )
        return np.stack([np.clip(image, 0, 1) for image in corrupted])

    def describe(self, viewer: Viewer, dataset: Dataset) -> str:
        return self.kind(viewer, dataset.shape[0])
