"""From a batch of images to network inputs: random crop, flip and normalization of the whole batch at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.data.transforms.pipeline import Pipeline
from fedloom.errors import FedloomError

Augment = Literal["none", "flip", "crop+flip"]
PADDING = 4  # pixels on each side, for the random crop


@dataclass(frozen=True)
class ImagePipeline(Pipeline):
    """From uint8 or float B,H,W,C (float16 for some shifted images) to float32 B,C,H,W, channels last."""

    def __post_init__(self) -> None:
        if self.augment not in get_args(Augment):
            raise FedloomError(f"augment is {self.augment!r}; allowed are {', '.join(get_args(Augment))}")

    def __call__(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        if generator is not None and self.augment != "none":
            x = _crop_and_flip(x, PADDING if self.augment == "crop+flip" else 0, generator)
        batch, height, width, channels = x.shape
        factor, shift = _line(self.scale, self.mean, self.std, height * width)
        # As a matrix, one row per image: long rows are vectorized, pixels of three numbers are not.
        flat = torch.addcmul(shift, x.reshape(batch, len(factor)).float(), factor)
        return flat.view(batch, height, width, channels).permute(0, 3, 1, 2)

    def rows(self, x: Tensor) -> Tensor:
        """N,H,W,C, so that rows are whole images."""
        return self(x, None).permute(0, 2, 3, 1).contiguous()

    def inputs(self, rows: Tensor) -> Tensor:
        return rows.permute(0, 3, 1, 2)


@lru_cache(maxsize=32)
def _line(scale: float, mean: tuple[float, ...], std: tuple[float, ...], pixels: int) -> tuple[Tensor, Tensor]:
    """(x / scale - mean) / std as factor * x + shift, for every value of an image."""
    deviation = torch.tensor(std, dtype=torch.float64)
    factor = 1 / (scale * deviation)
    shift = -torch.tensor(mean, dtype=torch.float64) / deviation
    return factor.float().repeat(pixels), shift.float().repeat(pixels)


def _crop_and_flip(x: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Mirror each image or not, pad it with zeros, and crop a random window: one gather for the batch.

    All windows of the plain and the mirrored images are one strided view. Numpy's indexing of it copies whole rows, and is
    faster than torch's indexing of the same view, than index_select of pixels, and than indexing by image, row and column.
    """
    batch, height, width, channels = x.shape
    kind = x.numpy().dtype
    sides = np.zeros((2, batch, height + 2 * padding, width + 2 * padding, channels), kind)
    inner = sides[:, :, padding : padding + height, padding : padding + width]
    inner[0] = x.numpy()
    inner[1] = x.flip(2).numpy()  # torch reverses pixels of few channels vectorized, numpy one by one

    places = 2 * padding + 1
    side = torch.randint(2, (batch,), generator=generator).numpy()
    top, left = torch.randint(places, (2, batch), generator=generator).numpy()
    image, row, pixel = sides.strides[1:4]
    windows: npt.NDArray[Any] = np.ndarray(
        shape=(2, batch, places, places, height, width * channels),
        strides=(sides.strides[0], image, row, pixel, row, kind.itemsize),
        dtype=kind,
        buffer=sides,
    )
    return torch.from_numpy(windows[side, np.arange(batch), top, left]).view(batch, height, width, channels)
