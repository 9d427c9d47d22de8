"""Every client sees its images in other colours: hues turned by an angle of its own, 360 i/N or D i/(N-1) degrees.

The three channels are turned about the grey axis, x' = R x with R the rotation by the angle about (1, 1, 1), then cut to
0 to 1: grey stays as it is, and so does the sum of the channels where nothing is cut. By 120 degrees red becomes green.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, radians, sqrt
from typing import ClassVar

import numpy as np

from fedloom.data.sets import ImageSet
from fedloom.data.splits.partition import Index
from fedloom.data.splits.rotate import angle
from fedloom.data.splits.scheme import Change, Pixels, Viewer, register
from fedloom.errors import FedloomError


@register
@dataclass(frozen=True)
class Colour(Change):
    degrees: float | None = None

    name: ClassVar[str] = "colour"
    summary: ClassVar[str] = "client i of N sees hues turned by 360 i/N degrees; colour:D by D i/(N-1)"
    example: ClassVar[str] = "colour"
    order: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.degrees is not None and not (isfinite(self.degrees) and -360 <= self.degrees <= 360):
            raise FedloomError(
                f"split {self}: the angle must be -360 to 360 degrees; write colour:90, or {self.example}"
            )

    def check(self, images: ImageSet, clients: int) -> None:
        if images.shape[0] != 3:
            raise FedloomError(f"split {self} needs images of three channels, and {images.name} has {images.shape[0]}")

    def change(self, x: Pixels, index: Index, viewer: Viewer) -> Pixels:
        degrees = angle(self.degrees, viewer)
        return x if degrees % 360 == 0 else np.clip(x @ hue_matrix(degrees).T, 0, 1)

    def told(self, viewer: Viewer, images: ImageSet) -> str:
        return f"hue {angle(self.degrees, viewer):+.3g}°"


def hue_matrix(degrees: float) -> Pixels:
    """Rotation about the grey axis (Rodrigues' formula with the axis (1, 1, 1) / sqrt(3))."""
    cos, sin = np.cos(radians(degrees)), np.sin(radians(degrees))
    cross = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / sqrt(3)
    return np.asarray(cos * np.eye(3) + sin * cross + (1 - cos) / 3)
