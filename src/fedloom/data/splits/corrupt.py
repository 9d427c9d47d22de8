"""Every client sees another corruption of its images, as in CIFAR-10-C: client i the kind i mod K, at severity 1 to 5.

FedNN's concept drift. The kinds and their definitions are in corruptions.py; of images with one channel, saturate is
left out. A kind that draws does so from a generator of each image's own (seed, client, image).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

import numpy as np

from fedloom.data.sets import ImageSet
from fedloom.data.splits.partition import Index
from fedloom.data.splits.scheme import Change, Pixels, Viewer, register
from fedloom.errors import FedloomError


@register
@dataclass(frozen=True)
class Corrupt(Change):
    level: int

    name: ClassVar[str] = "corrupt"
    summary: ClassVar[str] = "client i sees the i-th of 15 kinds of corruption, at severity LEVEL from 1 to 5"
    paper: ClassVar[str] = "Hendrycks and Dietterich 2019"
    example: ClassVar[str] = "corrupt:3"
    order: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if not 1 <= self.level <= 5:
            raise FedloomError(f"split {self}: the severity must be 1 to 5; write {self.example}")

    def check(self, images: ImageSet, clients: int) -> None:
        if images.shape[0] not in (1, 3):
            raise FedloomError(
                f"split {self} needs images of one or three channels; {images.name} has {images.shape[0]}"
            )
        if min(images.shape[1:]) < 4:
            raise FedloomError(f"split {self} needs images of 4 x 4 pixels or more; {images.name} is smaller")
        if find_spec("PIL") is None:
            raise FedloomError(f"split {self} needs pillow, which is missing: pip install pillow")

    def kind(self, viewer: Viewer, channels: int) -> str:
        from fedloom.data.corruptions import COLOURED, KINDS  # scipy takes a while, and few need it

        names = [name for name in KINDS if channels == 3 or name not in COLOURED]
        return names[viewer.client % len(names)]

    def change(self, x: Pixels, index: Index, viewer: Viewer) -> Pixels:
        from fedloom.data.corruptions import KINDS

        kind = KINDS[self.kind(viewer, x.shape[3])]
        pictures = (
            kind(picture, self.level - 1, viewer.generator(self.name, place))
            for picture, place in zip(np.clip(x, 0, 1), index, strict=True)
        )
        return np.stack([np.clip(picture, 0, 1) for picture in pictures])

    def told(self, viewer: Viewer, images: ImageSet) -> str:
        return self.kind(viewer, images.shape[0])
