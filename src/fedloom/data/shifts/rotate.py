"""Rotation: client i of N sees its images rotated by 360 i/N degrees, or by D i/(N-1).

Counterclockwise about the center, with bilinear interpolation; outside the image is black.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, radians
from typing import ClassVar

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.partition.partition import Index
from fedloom.data.scheme import register
from fedloom.data.shifts.shift import Pixels, Shift, Step, Viewer
from fedloom.errors import FedloomError


@register
@dataclass(frozen=True)
class Rotate(Shift):
    degrees: float | None = None

    name: ClassVar[str] = "rotate"
    summary: ClassVar[str] = "images of client i of N are rotated by 360 i/N degrees, with rotate:D by D i/(N-1)"
    paper: ClassVar[str] = "Ghosh et al. 2020"
    example: ClassVar[str] = "rotate"
    step: ClassVar[Step] = "geometry"

    def __post_init__(self) -> None:
        if self.degrees is not None and not (isfinite(self.degrees) and -360 <= self.degrees <= 360):
            raise FedloomError(
                f"split {self}: the angle must be -360 to 360 degrees; write rotate:90, or {self.example}"
            )

    def apply(self, x: Pixels, index: Index, viewer: Viewer) -> Pixels:
        return rotated(x, angle(self.degrees, viewer))

    def describe(self, viewer: Viewer, dataset: Dataset) -> str:
        return f"rotated {angle(self.degrees, viewer):.3g}°"


def angle(largest: float | None, viewer: Viewer) -> float:
    """The angle of a client: evenly spaced around the circle, or from 0 to the largest."""
    return 360 * viewer.client / viewer.clients if largest is None else largest * viewer.place


def rotated(x: Pixels, degrees: float) -> Pixels:
    """N,H,W,C rotated counterclockwise; all images share the same four source pixels and weights."""
    if degrees % 360 == 0:
        return x
    height, width = x.shape[1:3]
    middle = np.array([(height - 1) / 2, (width - 1) / 2])[:, None, None]
    row, column = np.indices((height, width)) - middle
    cos, sin = np.cos(radians(degrees)), np.sin(radians(degrees))
    # Positions in the result are rotated back to positions in the image; rows point downwards.
    source = np.stack([cos * row + sin * column, cos * column - sin * row]) + middle
    source = np.round(source, 9)  # so that right angles hit pixels exactly
    low = np.floor(source).astype(np.int64)
    fraction = source - low
    out = np.zeros_like(x)
    for down in (0, 1):
        for right in (0, 1):
            r, c = low[0] + down, low[1] + right
            weight = (fraction[0] if down else 1 - fraction[0]) * (fraction[1] if right else 1 - fraction[1])
            weight = weight * ((r >= 0) & (r < height) & (c >= 0) & (c < width))
            out += x[:, np.clip(r, 0, height - 1), np.clip(c, 0, width - 1)] * weight[None, :, :, None]
    return out
