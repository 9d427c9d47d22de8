"""From a batch of images to network inputs: augmentation and normalization of the whole batch at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedloom.data.transforms.augment import parse_augment
from fedloom.data.transforms.pipeline import Pipeline


@dataclass(frozen=True)
class ImagePipeline(Pipeline):
    """From uint8 or float B,H,W,C (float16 for some shifted images) to float32 B,C,H,W, channels last."""

    def __post_init__(self) -> None:
        parse_augment(self.augment)

    def __call__(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        augmentation = None if generator is None else parse_augment(self.augment)
        if generator is None or augmentation is None:
            return self._normalized(x)
        return augmentation.after(self._normalized(augmentation.before(x, generator)), generator)

    def _normalized(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        factor, shift = _line(self.scale, self.mean, self.std, height * width)
        # As a matrix, one row per image: long rows are vectorized, pixels of three numbers are not.
        flat = torch.addcmul(shift, x.reshape(batch, len(factor)).float(), factor)
        return flat.view(batch, height, width, channels).permute(0, 3, 1, 2)

    def rows(self, x: Tensor) -> Tensor:
        """N,H,W,C, so that rows are whole images."""
        return self(x, None).permute(0, 2, 3, 1).contiguous()

    def inputs(self, rows: Tensor) -> Tensor:
        return rows.movedim(-1, -3)


@lru_cache(maxsize=32)
def _line(scale: float, mean: tuple[float, ...], std: tuple[float, ...], pixels: int) -> tuple[Tensor, Tensor]:
    """(x / scale - mean) / std as factor * x + shift, for every value of an image."""
    deviation = torch.tensor(std, dtype=torch.float64)
    factor = 1 / (scale * deviation)
    shift = -torch.tensor(mean, dtype=torch.float64) / deviation
    return factor.float().repeat(pixels), shift.float().repeat(pixels)
