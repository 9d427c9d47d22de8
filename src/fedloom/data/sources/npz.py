"""Datasets in one npz file, read without pickle.

Keys are train_x, train_y, test_x, test_y with optional train_domain, test_domain, train_writer, test_writer; or x and y
with optional is_test, domain, writer. Both may have class_names and domain_names. Other keys are ignored. Labels are
integers or texts; `data/arrays.py` says how they become class numbers.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from fedloom.data.sources.source import DataSource, data_format, stamp
from fedloom.errors import FedloomError, brief
from fedloom.io.archives import ERRORS, read_arrays, shape_of
from fedloom.paths import obstacle, resolved

_ARRAYS = ("x", "y", "domain", "writer")
KEYS = {*_ARRAYS, *(f"{part}_{key}" for part in ("train", "test") for key in _ARRAYS)} | {
    "is_test",
    "class_names",
    "domain_names",
}


@data_format("PATH.npz", "any npz file with train_x, train_y, test_x, test_y; images as uint8 N,H,W,C")
def open_npz(text: str) -> DataSource:
    path = resolved(text, "data")
    if not path.exists():
        raise FedloomError(f"data {str(path)!r} does not exist; expected an npz file")
    if reason := obstacle(path):
        raise FedloomError(f"data {str(path)!r} cannot be read ({reason}); expected an npz file")
    return DataSource(path.stem, str(path), ("npz", *stamp([path])), lambda _: read_arrays(path, KEYS))


def outline(path: Path) -> str:
    """Number and shape of the images, from the headers alone."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            shapes = {
                key: shape_of(archive, archive.getinfo(f"{key}.npy"))[0]
                for key in ("train_x", "test_x", "x")
                if f"{key}.npy" in names
            }
    except ERRORS as error:
        return f"cannot be read ({brief(str(error) or type(error).__name__)})"
    images = {key: (shape[0], " x ".join(map(str, shape[1:]))) for key, shape in shapes.items() if shape}
    if {"train_x", "test_x"} <= images.keys():
        return f"{images['train_x'][0]} training and {images['test_x'][0]} test images, {images['train_x'][1]}"
    if "x" in images:
        return f"{images['x'][0]} images, {images['x'][1]}"
    return "has neither train_x and test_x nor x"
