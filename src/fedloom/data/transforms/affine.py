"""`affine:DEGREES:SHIFT:ZOOM`: each image is rotated, shifted and scaled about its center, at random.

The angle is uniform in -DEGREES to DEGREES (default: 10), the shift in -SHIFT to SHIFT of the image's height and width (0.1),
the factor in 1 - ZOOM to 1 + ZOOM (0.1). Values are interpolated bilinearly; outside the image is black. One pass of
`grid_sample` for the batch, in pixels, so that angles are true in images that are not square.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.errors import FedloomError, shown


@dataclass(frozen=True)
class Affine:
    degrees: float = 10.0
    shift: float = 0.1  # share of height and width
    zoom: float = 0.1  # the largest change of scale

    @staticmethod
    def parse(text: str, values: list[str]) -> Affine:
        """`text`: the whole of `augment`; `values`: what follows affine, between colons."""
        try:
            affine = Affine(*(float(value) for value in values))
        except (ValueError, TypeError):
            raise FedloomError(
                f"augment is {shown(text)}; affine takes up to three numbers: affine:DEGREES:SHIFT:ZOOM"
            ) from None
        if not (0 <= affine.degrees <= 180 and 0 <= affine.shift <= 1 and 0 <= affine.zoom < 1):
            raise FedloomError(
                f"augment is {shown(text)}; affine:DEGREES:SHIFT:ZOOM takes degrees from 0 to 180, a shift from 0 to 1 and "
                "a zoom from 0 to below 1"
            )
        return affine

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Stored images B,H,W,C of any type; floats B,H,W,C."""
        batch, height, width, _ = x.shape
        drawn = (2 * torch.rand(4, batch, 1, 1, dtype=torch.float64, generator=generator) - 1).to(x.device)
        angle, zoom = math.radians(self.degrees) * drawn[0], 1 + self.zoom * drawn[1]
        # from a pixel of the result back to its place in the image: both are counted from the center
        row = self._centered(height, x.device)[:, None] - self.shift * height * drawn[2]
        column = self._centered(width, x.device)[None, :] - self.shift * width * drawn[3]
        cos, sin = angle.cos() / zoom, angle.sin() / zoom
        places = [(cos * column + sin * row) / max(width - 1, 1), (cos * row - sin * column) / max(height - 1, 1)]
        grid = (2 * torch.stack(places, -1)).float()
        pixels = x.permute(0, 3, 1, 2).float()
        moved = F.grid_sample(pixels, grid, mode="bilinear", padding_mode="zeros", align_corners=True)
        return moved.permute(0, 2, 3, 1).contiguous()

    @staticmethod
    def _centered(size: int, device: torch.device) -> Tensor:
        return torch.arange(size, dtype=torch.float64, device=device) - (size - 1) / 2
