"""Gaussian noise that grows from client to client: client i of N adds noise of deviation SIGMA i/(N-1) to values 0 to 1.

The feature skew of FNR-FL and NIID-Bench. The noise of an image is drawn from one generator per (seed, client, image): it
is the same in every round and for every method, for training and test samples. As in the published code, values are not
clipped, so black and white pixels get the full deviation too; shifted images are stored as float16. Departure: the
published code draws new noise at every access. Features are standardized first, so SIGMA is in units of their deviation.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.partition.partition import Index
from fedloom.data.scheme import register
from fedloom.data.shifts.shift import Pixels, Shift, Step, Viewer
from fedloom.data.spec import Kind
from fedloom.errors import FedloomError

LARGEST = 10.0


@register
@dataclass(frozen=True)
class Noise(Shift):
    sigma: float

    name: ClassVar[str] = "noise"
    summary: ClassVar[str] = "client i of N adds Gaussian noise of deviation SIGMA i/(N-1) to values from 0 to 1"
    paper: ClassVar[str] = "Li et al. 2022"
    example: ClassVar[str] = "noise:0.1"
    step: ClassVar[Step] = "noise"
    leaves_range: ClassVar[bool] = True
    kinds: ClassVar[tuple[Kind, ...]] = ("image", "features")

    def __post_init__(self) -> None:
        if not (isfinite(self.sigma) and 0 <= self.sigma <= LARGEST):
            raise FedloomError(f"split {self}: the deviation must be 0 to {LARGEST:g}; write {self.example}")

    def apply(self, x: Pixels, index: Index, viewer: Viewer) -> Pixels:
        deviation = self.sigma * viewer.place
        if deviation == 0:
            return x
        noise = [viewer.generator(self.name, place).standard_normal(x.shape[1:]) for place in index]
        return np.asarray(x + deviation * np.stack(noise))

    def describe(self, viewer: Viewer, dataset: Dataset) -> str:
        return f"noise {self.sigma * viewer.place:.3g}"
