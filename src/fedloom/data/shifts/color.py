"""Color shift: each client sees its images with another hue, rotated by 360 i/N or D i/(N-1) degrees.

The three channels are rotated about the gray axis, x' = R x with R the rotation about (1, 1, 1), then clipped to [0, 1].
Gray does not change, nor does the sum of the channels where nothing is clipped. 120 degrees turn red into green.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, radians, sqrt
from typing import ClassVar

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.partition.partition import Index
from fedloom.data.scheme import register
from fedloom.data.shifts.rotate import angle
from fedloom.data.shifts.shift import Pixels, Shift, Step, Viewer
from fedloom.errors import FedloomError


@register
@dataclass(frozen=True)
class Color(Shift):
    degrees: float | None = None

    name: ClassVar[str] = "color"
    summary: ClassVar[str] = "hues of client i of N are rotated by 360 i/N degrees, with color:D by D i/(N-1)"
    example: ClassVar[str] = "color"
    step: ClassVar[Step] = "color"

    def __post_init__(self) -> None:
        if self.degrees is not None and not (isfinite(self.degrees) and -360 <= self.degrees <= 360):
            raise FedloomError(
                f"split {self}: the angle must be -360 to 360 degrees; write color:90, or {self.example}"
            )

    def check(self, dataset: Dataset, clients: int) -> None:
        if dataset.shape[0] != 3:
            raise FedloomError(f"split {self} needs images with three channels; {dataset.name} has {dataset.shape[0]}")

    def apply(self, x: Pixels, index: Index, viewer: Viewer) -> Pixels:
        degrees = angle(self.degrees, viewer)
        return x if degrees % 360 == 0 else np.clip(x @ hue_matrix(degrees).T, 0, 1)

    def describe(self, viewer: Viewer, dataset: Dataset) -> str:
        return f"hue {angle(self.degrees, viewer):+.3g}°"


def hue_matrix(degrees: float) -> Pixels:
    """Rotation about the gray axis: Rodrigues' formula with the axis (1, 1, 1) / sqrt(3)."""
    cos, sin = np.cos(radians(degrees)), np.sin(radians(degrees))
    cross = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / sqrt(3)
    return np.asarray(cos * np.eye(3) + sin * cross + (1 - cos) / 3)
