"""`augment`: random changes of training images, drawn anew for every batch. Terms are joined by +, in any order.

    flip                    mirror left and right with probability 1/2
    crop:PADDING[:reflect]  pad with zeros, or by reflection, and crop a random window of the image's size (default: 4)
    resizedcrop:SMALLEST    crop a box with SMALLEST to all of the area and a ratio of 3/4 to 4/3, resized bilinearly
                            (default: 0.08; Szegedy et al. 2015)
    affine:DEGREES:SHIFT:ZOOM  rotate, shift and scale (default: 10 degrees, 0.1 of the sides, 0.1; see affine.py)
    cutout:SIDE             a square of the mean color at a random place, cut at the border (default: half of the image's
                            height; DeVries and Taylor 2017)

affine comes first, then one of the two crops, then flip, then cutout.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.data.transforms.affine import Affine
from fedloom.errors import FedloomError, shown

ALLOWED = (
    "none, or a sum of flip, crop[:PADDING[:reflect]], resizedcrop[:SMALLEST], affine[:DEGREES[:SHIFT[:ZOOM]]] and "
    "cutout[:SIDE], as in crop+flip"
)
TERM = re.compile(r"(flip|crop|resizedcrop|cutout)(?::([0-9.]+))?(?::(reflect))?")
PADDING = 4  # pixels on each side
SMALLEST = 0.08  # share of the area
RATIO = 4 / 3
TRIES = 10  # boxes drawn for an image before the whole image is used


@dataclass(frozen=True)
class Augmentation:
    flip: bool = False
    padding: int | None = None  # of the random crop; None: no crop
    reflect: bool = False
    smallest: float | None = None  # of the resized crop; None: none
    cutout: int | None = None  # side; 0: half of the height; None: none
    affine: Affine | None = None

    def check(self, height: int, width: int) -> None:
        if self.reflect and self.padding is not None and self.padding >= min(height, width):
            raise FedloomError(
                f"augment: reflection pads by at most {min(height, width) - 1} pixels in images of {height}x{width} "
                f"(wanted: {self.padding})"
            )

    def before(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Move, crop and flip stored images B,H,W,C."""
        if self.affine is not None:
            x = self.affine(x, generator)
        if self.smallest is not None:
            return _resized_crop(x, self.smallest, self.flip, generator)
        if self.flip or self.padding is not None:
            return _crop_and_flip(x, self.padding or 0, self.flip, self.reflect, generator)
        return x

    def after(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Cut squares out of normalized images B,C,H,W, where 0 is the mean color. Changes them in place."""
        if self.cutout is None:
            return x
        batch, _, height, width = x.shape
        side = self.cutout or max(height // 2, 1)
        inside = []
        for size in (height, width):
            begin = torch.randint(size, (batch, 1), generator=generator) - side // 2
            place = torch.arange(size)
            inside.append((place >= begin) & (place < begin + side))
        rows, columns = inside
        return x.masked_fill_((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)


@lru_cache(maxsize=32)
def parse_augment(text: str) -> Augmentation | None:
    """None for none."""
    if text == "none":
        return None
    fields: dict[str, Any] = {}
    for term in text.split("+"):
        if (values := term.strip().split(":"))[0] == "affine":
            if "affine" in fields:
                raise FedloomError(f"augment is {shown(text)}; affine is the second of its kind: keep one")
            fields["affine"] = Affine.parse(text, values[1:])
            continue
        match = TERM.fullmatch(term.strip())
        if match is None:
            raise FedloomError(f"augment is {shown(text)}; allowed are {ALLOWED}")
        name, number, reflect = match.groups()
        if name in fields or (name in ("crop", "resizedcrop") and {"crop", "resizedcrop"} & fields.keys()):
            raise FedloomError(f"augment is {shown(text)}; {name} is the second of its kind: keep one")
        if (reflect and name != "crop") or (number and name == "flip"):
            raise FedloomError(f"augment is {shown(text)}; allowed are {ALLOWED}")
        fields[name] = _value(text, name, number)
        fields["reflect"] = fields.get("reflect", False) or reflect is not None
    return Augmentation(
        flip="flip" in fields,
        padding=fields.get("crop"),
        reflect=fields.get("reflect", False),
        smallest=fields.get("resizedcrop"),
        cutout=fields.get("cutout"),
        affine=fields.get("affine"),
    )


def _value(text: str, name: str, number: str | None) -> float | int | None:
    if name == "flip":
        return None
    if name == "resizedcrop":
        share = SMALLEST if number is None else _number(text, name, number)
        if not 0 < share <= 1:
            raise FedloomError(f"augment is {shown(text)}; the smallest share of resizedcrop must be in (0, 1]")
        return share
    if number is None:
        return PADDING if name == "crop" else 0
    pixels = _number(text, name, number)
    if pixels != int(pixels) or not 1 <= pixels <= 4096:
        raise FedloomError(f"augment is {shown(text)}; {name} takes pixels from 1 to 4096")
    return int(pixels)


def _number(text: str, name: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise FedloomError(f"augment is {shown(text)}; {name}:{number} has no number; allowed are {ALLOWED}") from None


def _crop_and_flip(x: Tensor, padding: int, flip: bool, reflect: bool, generator: torch.Generator) -> Tensor:
    """Mirror each image or not, pad it, and crop a random window: one gather for the batch.

    All windows of the plain and the mirrored images are one strided view. Numpy's indexing of it copies whole rows, and is
    faster than torch's indexing of the same view, than index_select of pixels, and than indexing by image, row and column.
    """
    batch, height, width, channels = x.shape
    kind = x.numpy().dtype
    sides = np.zeros((1 + flip, batch, height + 2 * padding, width + 2 * padding, channels), kind)
    inner = sides[:, :, padding : padding + height, padding : padding + width]
    inner[0] = x.numpy()
    if flip:
        inner[1] = x.flip(2).numpy()  # torch reverses pixels of few channels vectorized, numpy one by one
    if reflect:
        sides = np.pad(inner, [(0, 0), (0, 0), (padding, padding), (padding, padding), (0, 0)], "reflect")

    places = 2 * padding + 1
    side = torch.randint(2, (batch,), generator=generator).numpy() if flip else np.zeros(batch, np.int64)
    top, left = torch.randint(places, (2, batch), generator=generator).numpy()
    image, row, pixel = sides.strides[1:4]
    windows: npt.NDArray[Any] = np.ndarray(
        shape=(1 + flip, batch, places, places, height, width * channels),
        strides=(sides.strides[0], image, row, pixel, row, kind.itemsize),
        dtype=kind,
        buffer=sides,
    )
    return torch.from_numpy(windows[side, np.arange(batch), top, left]).view(batch, height, width, channels)


def _resized_crop(x: Tensor, smallest: float, flip: bool, generator: torch.Generator) -> Tensor:
    """Boxes of random area, ratio and place, resized bilinearly to the image's size; floats B,H,W,C.

    The same boxes for images of any type. Resizing only enlarges, so there is nothing to filter.
    """
    batch, height, width, _ = x.shape
    mirrored = torch.randint(2, (batch,), generator=generator).bool() if flip else torch.zeros(batch, dtype=torch.bool)
    tall, wide = _boxes(batch, height, width, smallest, generator)
    place = torch.rand(2, batch, dtype=torch.float64, generator=generator)
    rows = _places(tall, height, place[0])
    columns = _places(wide, width, place[1])
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    grid = torch.stack([columns[:, None, :].expand(-1, height, -1), rows[:, :, None].expand(-1, -1, width)], -1)
    pixels = x.permute(0, 3, 1, 2).float()
    resized = F.grid_sample(pixels, grid.float(), mode="bilinear", padding_mode="border", align_corners=True)
    return resized.permute(0, 2, 3, 1).contiguous()


def _boxes(batch: int, height: int, width: int, smallest: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Heights and widths: the first of several draws that fits into the image, else the whole image."""
    area, ratio = torch.rand(2, TRIES, batch, dtype=torch.float64, generator=generator)
    area = height * width * (smallest + (1 - smallest) * area)
    ratio = torch.exp((2 * ratio - 1) * math.log(RATIO))
    tall, wide = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (tall >= 1) & (wide >= 1) & (tall <= height) & (wide <= width)
    first = fits.int().argmax(0, keepdim=True)
    whole = ~fits.any(0)
    return (
        tall.gather(0, first)[0].masked_fill(whole, float(height)),
        wide.gather(0, first)[0].masked_fill(whole, float(width)),
    )


def _places(length: Tensor, size: int, place: Tensor) -> Tensor:
    """(B, size): where each output pixel lies in the image, from -1 (first pixel) to 1 (last), for boxes of this length."""
    begin = (place * (size - length + 1)).floor()
    inside = (torch.arange(size, dtype=torch.float64) + 0.5)[None] * (length / size)[:, None] - 0.5
    pixel = begin[:, None] + inside.clamp(min=0).minimum(length[:, None] - 1)
    return 2 * pixel / max(size - 1, 1) - 1
