"""Pictures in folders by class: PATH/train/CLASS/* and PATH/test/CLASS/*, or PATH/CLASS/*.

The second form has no test set of its own: every fifth picture of the sorted order (class, then file name) is test.
A class is a folder that holds a picture; other files are left alone, and so is what begins with a dot.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.data.arrays import Content
from fedloom.data.sources.pictures import pillow, stack
from fedloom.data.sources.source import Source, stamp
from fedloom.errors import FedloomError

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


def folder(text: str) -> Source:
    root = Path(text).expanduser().resolve()
    if not text or not root.is_dir():
        raise FedloomError(
            f"data 'folder:{text}' is not a folder; expected is folder:PATH with pictures in PATH/CLASS/"
        )
    parts = [root / "train", root / "test"] if (root / "train").is_dir() and (root / "test").is_dir() else [root]
    if len(parts) == 1 and (root / "train").is_dir() and _pictures(root / "train"):
        raise FedloomError(f"{root} has train/CLASS/ but no test/ beside it; expected are both, or PATH/CLASS/ alone")
    found = [_pictures(part) for part in parts]
    for part, pictures in zip(parts, found, strict=True):
        if not pictures:
            raise FedloomError(f"{part} holds no pictures by class; expected is {part}/CLASS/*.png (or jpg, bmp, …)")
    identity = ("folder", str(root), *stamp(path for pictures in found for path in pictures))
    return Source(root.name, str(root), identity, lambda resize: _read(found, resize))


def _pictures(part: Path) -> list[Path]:
    classes = [path for path in part.iterdir() if path.is_dir() and not path.name.startswith(".")]
    paths = [path for each in classes for path in each.iterdir() if path.suffix.lower() in ENDINGS]
    return sorted(path for path in paths if not path.name.startswith(".") and path.is_file())


def _read(found: list[list[Path]], resize: int | None) -> Content:
    paths = [path for pictures in found for path in pictures]
    names = sorted({path.parent.name for path in paths})
    number = {name: place for place, name in enumerate(names)}
    content = {
        "x": stack(_decoded(paths), len(paths), resize),
        "y": np.array([number[path.parent.name] for path in paths]),
        "class_names": np.array(names),
    }
    if len(found) == 2:
        content["is_test"] = np.arange(len(paths)) >= len(found[0])
    return content


def _decoded(paths: list[Path]) -> Iterator[tuple[str, Any]]:
    image = pillow()
    for path in paths:
        try:
            with image.open(path) as picture:
                picture.load()
                yield str(path), picture
        except (OSError, SyntaxError, image.DecompressionBombError) as error:
            raise FedloomError(f"{path} cannot be decoded as a picture ({error})") from error
