"""Image files in folders by class, or by domain and class:

    PATH/train/CLASS/* and PATH/test/CLASS/*, or PATH/CLASS/*
    PATH/train/DOMAIN/CLASS/* and PATH/test/DOMAIN/CLASS/*, or PATH/DOMAIN/CLASS/*

Without train and test folders, every fifth image in sorted order (domain, class, file name) is for testing. A class is a
folder that holds an image. Other files, and names that begin with a dot, are ignored.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.data.arrays import Content
from fedloom.data.decode import pillow, stack_images
from fedloom.data.sources.source import DataSource, data_format, stamp
from fedloom.errors import FedloomError, brief, shown
from fedloom.io.archives import Array
from fedloom.paths import resolved

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


@data_format("folder:PATH", "images in PATH/train/CLASS/ and PATH/test/CLASS/, or PATH/CLASS/; DOMAIN/CLASS/ likewise")
def open_folder(text: str) -> DataSource:
    root = resolved(text, "data")
    if not text or not root.is_dir():
        raise FedloomError(
            f"data {shown(f'folder:{text}')} is not a folder; expected folder:PATH with images in PATH/CLASS/"
        )
    parts = [root / "train", root / "test"] if (root / "train").is_dir() and (root / "test").is_dir() else [root]
    if len(parts) == 1 and (root / "train").is_dir() and _images(root / "train"):
        raise FedloomError(f"{root} has train/CLASS/ but no test/; expected both, or PATH/CLASS/ alone")
    paths = [_images(part) for part in parts]
    domains = not any(paths)
    if domains:
        paths = [[path for domain in _folders(part) for path in _images(domain)] for part in parts]
    for part, images in zip(parts, paths, strict=True):
        if not images:
            raise FedloomError(
                f"{part} holds no images by class; expected {part}/CLASS/*.png (or jpg, bmp, …), "
                f"or {part}/DOMAIN/CLASS/*.png"
            )
    identity = ("folder", str(root), *stamp(path for images in paths for path in images))
    return DataSource(root.name, str(root), identity, lambda resize: _read(paths, domains, resize))


def _folders(part: Path) -> list[Path]:
    return sorted(path for path in part.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(part: Path) -> list[Path]:
    paths = [path for each in _folders(part) for path in each.iterdir() if path.suffix.lower() in ENDINGS]
    return sorted(path for path in paths if not path.name.startswith(".") and path.is_file())


def _read(paths_by_part: list[list[Path]], domains: bool, resize: int | None) -> Content:
    paths = [path for part in paths_by_part for path in part]
    y, class_names = _numbered([path.parent.name for path in paths])
    content = {"x": stack_images(_decoded(paths), len(paths), resize), "y": y, "class_names": class_names}
    if domains:
        content["domain"], content["domain_names"] = _numbered([path.parent.parent.name for path in paths])
    if len(paths_by_part) == 2:
        content["is_test"] = np.arange(len(paths)) >= len(paths_by_part[0])
    return content


def _numbered(words: list[str]) -> tuple[Array, Array]:
    """Words as numbers, and the distinct words in sorted order."""
    names, numbers = np.unique(np.array(words), return_inverse=True)
    return numbers, names


def _decoded(paths: list[Path]) -> Iterator[tuple[str, Any]]:
    module = pillow()
    for path in paths:
        try:
            with warnings.catch_warnings(), module.open(path) as image:
                warnings.simplefilter("ignore")  # pillow warns of defects that it repairs
                image.load()
                yield str(path), image
        except Exception as error:  # pillow's decoders raise many types for damaged files
            reason = brief(str(error) or type(error).__name__)
            raise FedloomError(f"{path} cannot be decoded as an image ({reason})") from error
