"""Every client sees its images turned by an angle of its own: client i of N by 360 i/N degrees, or by D i/(N-1).

Anticlockwise about the middle; values between pixels are bilinear, and black comes in from outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, radians
from typing import ClassVar

import numpy as np

from fedloom.data.sets import ImageSet
from fedloom.data.splits.partition import Index
from fedloom.data.splits.scheme import Change, Pixels, Viewer, register
from fedloom.errors import FedloomError


@register
@dataclass(frozen=True)
class Rotate(Change):
    degrees: float | None = None

    name: ClassVar[str] = "rotate"
    summary: ClassVar[str] = "client i of N sees its images turned by 360 i/N degrees; rotate:D by D i/(N-1)"
    paper: ClassVar[str] = "Ghosh et al. 2020"
    example: ClassVar[str] = "rotate"
    order: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.degrees is not None and not (isfinite(self.degrees) and -360 <= self.degrees <= 360):
            raise FedloomError(
                f"split {self}: the angle must be -360 to 360 degrees; write rotate:90, or {self.example}"
            )

    def change(self, x: Pixels, index: Index, viewer: Viewer) -> Pixels:
        return turned(x, angle(self.degrees, viewer))

    def told(self, viewer: Viewer, images: ImageSet) -> str:
        return f"turned {angle(self.degrees, viewer):.3g}°"


def angle(largest: float | None, viewer: Viewer) -> float:
    """Of a client: evenly around the circle, or evenly from 0 to the largest."""
    return 360 * viewer.client / viewer.clients if largest is None else largest * viewer.place


def turned(x: Pixels, degrees: float) -> Pixels:
    """N,H,W,C turned anticlockwise; the same four pixels and weights for every image."""
    if degrees % 360 == 0:
        return x
    height, width = x.shape[1:3]
    middle = np.array([(height - 1) / 2, (width - 1) / 2])[:, None, None]
    row, column = np.indices((height, width)) - middle
    cos, sin = np.cos(radians(degrees)), np.sin(radians(degrees))
    # The picture turns by the angle, so the place it comes from turns back; rows point downwards.
    source = np.stack([cos * row + sin * column, cos * column - sin * row]) + middle
    source = np.round(source, 9)  # right angles hit pixels exactly
    low = np.floor(source).astype(np.int64)
    part = source - low
    out = np.zeros_like(x)
    for down in (0, 1):
        for right in (0, 1):
            r, c = low[0] + down, low[1] + right
            weight = (part[0] if down else 1 - part[0]) * (part[1] if right else 1 - part[1])
            weight = weight * ((r >= 0) & (r < height) & (c >= 0) & (c < width))
            out += x[:, np.clip(r, 0, height - 1), np.clip(c, 0, width - 1)] * weight[None, :, :, None]
    return out
