"""Image files in folders by class, or by domain and class:

    PATH/CLASS/*          PATH/train/CLASS/*          and PATH/test/CLASS/*
    PATH/DOMAIN/CLASS/*   PATH/train/DOMAIN/CLASS/*   and PATH/test/DOMAIN/CLASS/*
                          PATH/DOMAIN/train/CLASS/*   and PATH/DOMAIN/test/CLASS/*

The test folder may also be called val, validation or valid. folder:PATH?test=GLOB takes the test images from text files below
PATH, as DomainNet has them: each line begins with the path of an image below PATH. Without any of these, every fifth image
(`data.test_every`) in sorted order (domain, class, file name) is for testing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.data.arrays import Content
from fedloom.data.decode import pillow, stack_images
from fedloom.data.image_tree import ImageTree, image_tree
from fedloom.data.sources.options import read_options
from fedloom.data.sources.source import DataSource, data_format, stamp
from fedloom.errors import FedloomError, brief, shown
from fedloom.io.archives import Array
from fedloom.paths import resolved


@data_format(
    "folder:PATH", "images in PATH/CLASS/ or PATH/DOMAIN/CLASS/; with train/ and test/ (or val/) if they are divided"
)
def open_folder(text: str) -> DataSource:
    path, options = read_options("folder:", text, ("test",)) if "?" in text else (text, {})
    root = resolved(path, "data")
    if not path or not root.is_dir():
        raise FedloomError(
            f"data {shown(f'folder:{text}')} is not a folder; expected folder:PATH with images in PATH/CLASS/"
        )
    tree, lists = image_tree(root), _lists(root, options.get("test"))
    if lists:
        tree = tree.divided(root, lists)
    identity = ("folder", str(root), *stamp(image for part in tree.parts for image in part), *stamp(lists))
    return DataSource(root.name, str(root), identity, lambda resize: _read(tree, resize))


def _lists(root: Path, pattern: str | None) -> list[Path]:
    """The text files that name test images."""
    if pattern is None:
        return []
    files = [] if Path(pattern).is_absolute() else sorted(path for path in root.glob(pattern) if path.is_file())
    if not files:
        raise FedloomError(
            f"data: no file below {root} matches test={shown(pattern)}; expected text files that name test images"
        )
    return files


def _read(tree: ImageTree, resize: int | None) -> Content:
    paths = [path for part in tree.parts for path in part]
    y, class_names = _numbered([path.parent.name for path in paths])
    content = {"x": stack_images(_decoded(paths), len(paths), resize), "y": y, "class_names": class_names}
    if tree.domains is not None:
        content["domain"], content["domain_names"] = _numbered(tree.domains)
    if len(tree.parts) == 2:
        content["is_test"] = np.arange(len(paths)) >= len(tree.parts[0])
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
