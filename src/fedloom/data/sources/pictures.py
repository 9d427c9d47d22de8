"""Pictures, as pillow decodes them, into one uint8 array."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import numpy as np

from fedloom.data.arrays import Array
from fedloom.errors import FedloomError, brief

GREY = ("1", "L", "LA")
COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


def pillow() -> Any:
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise FedloomError("decoding pictures needs pillow, which is missing: pip install pillow") from error


def stack(pictures: Iterable[tuple[str, Any]], count: int, resize: int | None) -> Array:
    """N,H,W,C from (name, picture) pairs; one channel when all are grey, else three, transparency dropped."""
    out: Array = np.empty((0, 0, 0, 0), np.uint8)
    for place, (name, picture) in enumerate(pictures):
        pixels = _pixels(name, picture, resize)
        if place == 0:
            out = np.empty((count, *pixels.shape), np.uint8)
        if pixels.shape[:2] != out.shape[1:3]:
            sides = [f"{height} x {width}" for height, width in (pixels.shape[:2], out.shape[1:3])]
            raise FedloomError(
                f"{name} is {sides[0]} pixels and the pictures before it {sides[1]}; "
                "set data.resize to one side for all, such as 32"
            )
        if pixels.shape[2] > out.shape[3]:
            out = np.repeat(out, 3, axis=3)
        out[place] = pixels  # a grey picture among coloured ones fills all three channels
    return out


def _pixels(name: str, picture: Any, resize: int | None) -> Array:
    if picture.mode not in GREY + COLOUR:
        raise FedloomError(f"{name} has pixels of mode {picture.mode}; expected are pictures with 8 bits a channel")
    try:
        picture = picture.convert("L" if picture.mode in GREY else "RGB")
        if resize is not None and picture.size != (resize, resize):
            picture = picture.resize((resize, resize), pillow().Resampling.BILINEAR)
        pixels = np.asarray(picture)
    except (OSError, ValueError, TypeError, LookupError, OverflowError, MemoryError) as error:
        raise FedloomError(f"{name} cannot be decoded as a picture ({brief(str(error))})") from error
    return pixels[..., None] if pixels.ndim == 2 else pixels
