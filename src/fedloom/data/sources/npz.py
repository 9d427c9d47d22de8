"""Sets in one npz file, read without pickle.

Keys are train_x, train_y, test_x, test_y with optional train_domain, test_domain, train_writer, test_writer; or x and y
with optional is_test, domain, writer. Both may have class_names and domain_names. Other keys are left alone.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from fedloom.data.arrays import Content
from fedloom.data.sources.source import Source, stamp
from fedloom.errors import FedloomError

_BOTH = ("x", "y", "domain", "writer")
KEYS = {*_BOTH, *(f"{part}_{key}" for part in ("train", "test") for key in _BOTH)} | {
    "is_test",
    "class_names",
    "domain_names",
}


def npz(path: Path) -> Source:
    path = path.resolve()
    if not path.is_file():
        raise FedloomError(f"data {str(path)!r} is not there; expected is an npz file")
    return Source(path.stem, str(path), ("npz", *stamp([path])), lambda _: read(path))


def read(path: Path) -> Content:
    content = {}
    key = "the file"
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise FedloomError(
                    f"{path} holds a single array; expected is an npz file with the keys train_x, train_y, …"
                )
            for key in sorted(KEYS.intersection(archive.files)):
                content[key] = archive[key]
    except FedloomError:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        if "allow_pickle" in str(error) and key != "the file":
            raise FedloomError(
                f"{path}: {key} is an array of Python objects; expected are plain numbers or texts"
            ) from error
        raise FedloomError(f"{path}: {key} cannot be read ({error}); expected is a whole npz file") from error
    return content


def outline(path: Path) -> str:
    """How many images of which shape, from the headers alone."""
    try:
        with zipfile.ZipFile(path) as archive:
            shapes = {}
            for key in ("train_x", "test_x", "x"):
                if f"{key}.npy" in archive.namelist():
                    with archive.open(f"{key}.npy") as file:
                        shapes[key] = _header_shape(file)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        return f"cannot be read ({error})"
    if {"train_x", "test_x"} <= shapes.keys():
        count = f"{shapes['train_x'][0]} training and {shapes['test_x'][0]} test images"
        return f"{count}, {' x '.join(map(str, shapes['train_x'][1:]))}"
    if "x" in shapes:
        return f"{shapes['x'][0]} images, {' x '.join(map(str, shapes['x'][1:]))}"
    return "has neither train_x and test_x nor x"


def _header_shape(file: IO[bytes]) -> tuple[int, ...]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)[0]
    return np.lib.format.read_array_header_2_0(file)[0]
