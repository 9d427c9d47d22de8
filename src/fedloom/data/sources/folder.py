"""Pictures in folders by class, or by domain and class:

    PATH/train/CLASS/* and PATH/test/CLASS/*, or PATH/CLASS/*
    PATH/train/DOMAIN/CLASS/* and PATH/test/DOMAIN/CLASS/*, or PATH/DOMAIN/CLASS/*

Without train and test there is no test set of its own: every fifth picture of the sorted order (domain, class, then file
name) is test. A class is a folder that holds a picture; other files are left alone, and so is what begins with a dot.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.data.arrays import Array, Content
from fedloom.data.sources.pictures import pillow, stack
from fedloom.data.sources.source import Source, stamp
from fedloom.errors import FedloomError, brief, shown
from fedloom.paths import resolved

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


def folder(text: str) -> Source:
    root = resolved(text, "data")
    if not text or not root.is_dir():
        raise FedloomError(
            f"data {shown(f'folder:{text}')} is not a folder; expected is folder:PATH with pictures in PATH/CLASS/"
        )
    parts = [root / "train", root / "test"] if (root / "train").is_dir() and (root / "test").is_dir() else [root]
    if len(parts) == 1 and (root / "train").is_dir() and _pictures(root / "train"):
        raise FedloomError(f"{root} has train/CLASS/ but no test/ beside it; expected are both, or PATH/CLASS/ alone")
    found = [_pictures(part) for part in parts]
    domains = not any(found)
    if domains:
        found = [[path for domain in _folders(part) for path in _pictures(domain)] for part in parts]
    for part, pictures in zip(parts, found, strict=True):
        if not pictures:
            raise FedloomError(
                f"{part} holds no pictures by class; expected is {part}/CLASS/*.png (or jpg, bmp, …), "
                f"or {part}/DOMAIN/CLASS/*.png"
            )
    identity = ("folder", str(root), *stamp(path for pictures in found for path in pictures))
    return Source(root.name, str(root), identity, lambda resize: _read(found, domains, resize))


def _folders(part: Path) -> list[Path]:
    return sorted(path for path in part.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pictures(part: Path) -> list[Path]:
    paths = [path for each in _folders(part) for path in each.iterdir() if path.suffix.lower() in ENDINGS]
    return sorted(path for path in paths if not path.name.startswith(".") and path.is_file())


def _read(found: list[list[Path]], domains: bool, resize: int | None) -> Content:
    paths = [path for pictures in found for path in pictures]
    y, class_names = _numbered([path.parent.name for path in paths])
    content = {"x": stack(_decoded(paths), len(paths), resize), "y": y, "class_names": class_names}
    if domains:
        content["domain"], content["domain_names"] = _numbered([path.parent.parent.name for path in paths])
    if len(found) == 2:
        content["is_test"] = np.arange(len(paths)) >= len(found[0])
    return content


def _numbered(words: list[str]) -> tuple[Array, Array]:
    """Words as numbers, and the words they stand for, in sorted order."""
    names, numbers = np.unique(np.array(words), return_inverse=True)
    return numbers, names


def _decoded(paths: list[Path]) -> Iterator[tuple[str, Any]]:
    image = pillow()
    for path in paths:
        try:
            with warnings.catch_warnings(), image.open(path) as picture:
                warnings.simplefilter("ignore")  # of pillow, about what it makes good
                picture.load()
                yield str(path), picture
        except Exception as error:  # a decoder raises whatever a broken picture leads it to
            said = brief(str(error) or type(error).__name__)
            raise FedloomError(f"{path} cannot be decoded as a picture ({said})") from error
