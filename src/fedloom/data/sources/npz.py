"""Sets in one npz file, read without pickle.

Keys are train_x, train_y, test_x, test_y with optional train_domain, test_domain, train_writer, test_writer; or x and y
with optional is_test, domain, writer. Both may have class_names and domain_names. Other keys are left alone. Classes are
numbers 0, 1, 2 and so on, or texts; see `arrays` for what becomes of other labels.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from fedloom.archives import RAISED, read_arrays, shape_of
from fedloom.data.sources.source import Source, stamp
from fedloom.errors import FedloomError, brief
from fedloom.paths import obstacle, resolved

_BOTH = ("x", "y", "domain", "writer")
KEYS = {*_BOTH, *(f"{part}_{key}" for part in ("train", "test") for key in _BOTH)} | {
    "is_test",
    "class_names",
    "domain_names",
}


def npz(path: Path) -> Source:
    path = resolved(path, "data")
    if not path.exists():
        raise FedloomError(f"data {str(path)!r} is not there; expected is an npz file")
    if reason := obstacle(path):
        raise FedloomError(f"data {str(path)!r} cannot be read ({reason}); expected is an npz file")
    return Source(path.stem, str(path), ("npz", *stamp([path])), lambda _: read_arrays(path, KEYS))


def outline(path: Path) -> str:
    """How many images of which shape, from the headers alone."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            shapes = {
                key: shape_of(archive, archive.getinfo(f"{key}.npy"))[0]
                for key in ("train_x", "test_x", "x")
                if f"{key}.npy" in names
            }
    except RAISED as error:
        return f"cannot be read ({brief(str(error) or type(error).__name__)})"
    counted = {key: (shape[0], " x ".join(map(str, shape[1:]))) for key, shape in shapes.items() if shape}
    if {"train_x", "test_x"} <= counted.keys():
        return f"{counted['train_x'][0]} training and {counted['test_x'][0]} test images, {counted['train_x'][1]}"
    if "x" in counted:
        return f"{counted['x'][0]} images, {counted['x'][1]}"
    return "has neither train_x and test_x nor x"
