"""Pillow images as one uint8 array."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import numpy as np

from fedloom.errors import FedloomError, brief
from fedloom.io.archives import Array

GRAY = ("1", "L", "LA")
COLOR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


def pillow() -> Any:
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise FedloomError("decoding images needs pillow, which is missing: pip install pillow") from error


def stack_images(images: Iterable[tuple[str, Any]], count: int, resize: int | None) -> Array:
    """N,H,W,C from (name, image) pairs: one channel if all are gray, else three; transparency is dropped."""
    out: Array = np.empty((0, 0, 0, 0), np.uint8)
    for place, (name, image) in enumerate(images):
        pixels = _pixels(name, image, resize)
        if place == 0:
            out = np.empty((count, *pixels.shape), np.uint8)
        if pixels.shape[:2] != out.shape[1:3]:
            sides = [f"{height} x {width}" for height, width in (pixels.shape[:2], out.shape[1:3])]
            raise FedloomError(
                f"{name} is {sides[0]} pixels, the images before it {sides[1]}; "
                "set data.resize to one side for all, such as 32"
            )
        if pixels.shape[2] > out.shape[3]:
            out = np.repeat(out, 3, axis=3)
        out[place] = pixels  # a gray image among color images fills all three channels
    return out


def _pixels(name: str, image: Any, resize: int | None) -> Array:
    if image.mode not in GRAY + COLOR:
        raise FedloomError(f"{name} has pixels of mode {image.mode}; expected an image with 8 bits per channel")
    try:
        image = image.convert("L" if image.mode in GRAY else "RGB")
        if resize is not None and image.size != (resize, resize):
            image = image.resize((resize, resize), pillow().Resampling.BILINEAR)
        pixels = np.asarray(image)
    except (OSError, ValueError, TypeError, LookupError, OverflowError, MemoryError) as error:
        raise FedloomError(f"{name} cannot be decoded as an image ({brief(str(error))})") from error
    return pixels[..., None] if pixels.ndim == 2 else pixels
