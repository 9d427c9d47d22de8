"""Gaussian noise that grows from client to client: client i of N adds a deviation of SIGMA i/(N-1) on the scale 0 to 1.

The feature skew of FNR-FL and NIID-Bench. Each image's noise is drawn once, from a generator of its own (seed, client,
image), and is the same in every round and for every method; a client's test images get theirs in the same way. Values
are not clipped, as in the published code, so the deviation is what it says on black and white pixels too; changed
images are therefore kept as half-precision numbers. Departure: published code draws anew at every access.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

import numpy as np

from fedloom.data.sets import ImageSet
from fedloom.data.splits.partition import Index
from fedloom.data.splits.scheme import Change, Pixels, Viewer, register
from fedloom.errors import FedloomError

LARGEST = 10.0


@register
@dataclass(frozen=True)
class Noise(Change):
    sigma: float

    name: ClassVar[str] = "noise"
    summary: ClassVar[str] = "Gaussian noise: client i of N adds a deviation of SIGMA i/(N-1), values being 0 to 1"
    paper: ClassVar[str] = "Li et al. 2022"
    example: ClassVar[str] = "noise:0.1"
    order: ClassVar[int] = 4
    beyond: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (isfinite(self.sigma) and 0 <= self.sigma <= LARGEST):
            raise FedloomError(f"split {self}: the deviation must be 0 to {LARGEST:g}; write {self.example}")

    def change(self, x: Pixels, index: Index, viewer: Viewer) -> Pixels:
        deviation = self.sigma * viewer.place
        if deviation == 0:
            return x
        noise = [viewer.generator(self.name, place).standard_normal(x.shape[1:]) for place in index]
        return np.asarray(x + deviation * np.stack(noise))

    def told(self, viewer: Viewer, images: ImageSet) -> str:
        return f"noise {self.sigma * viewer.place:.3g}"
