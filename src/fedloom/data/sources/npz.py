"""Datasets in one npz file, read without pickle.

    x, y                               inputs and labels; every fifth sample is for testing, unless is_test says which
    train_x, train_y, test_x, test_y   the same, divided already
    domain, client, writer             optional groups, one per sample (train_domain, test_domain ... where divided already)
    is_test                            0 or 1 per sample
    class_names, domain_names, client_names   optional texts
    kind, vocabulary, padding          optional: image, features or tokens; of tokens, their number and the one that pads

Inputs are images (uint8 or float N,H,W,C, or uint8 N,H,W), features (float N,D; signals N,C,T) or tokens (integers N,T);
`data/inputs.py` says how the kind follows from type and shape. Labels and groups are integers or texts; `data/arrays.py`
says how they become numbers. `client` names natural clients, `writer` numbers them. Other keys are ignored.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from fedloom.data.inputs import OPTIONS
from fedloom.data.sources.source import DataSource, data_format, stamp
from fedloom.errors import FedloomError, brief
from fedloom.io.archives import ERRORS, read_arrays, shape_of
from fedloom.paths import obstacle, resolved

_ARRAYS = ("x", "y", "domain", "client", "writer")
_NAMES = ("class_names", "domain_names", "client_names")
KEYS = {*_ARRAYS, *(f"{part}_{key}" for part in ("train", "test") for key in _ARRAYS), "is_test", *_NAMES, *OPTIONS}


@data_format(
    "PATH.npz",
    "train_x, train_y, test_x, test_y (or x, y): images N,H,W,C, features N,D or N,C,T, tokens N,T; optional: is_test, "
    "domain, client, writer, class_names, domain_names, client_names, kind, vocabulary, padding",
)
def open_npz(text: str) -> DataSource:
    path = resolved(text, "data")
    if not path.exists():
        raise FedloomError(f"data {str(path)!r} does not exist; expected an npz file")
    if reason := obstacle(path):
        raise FedloomError(f"data {str(path)!r} cannot be read ({reason}); expected an npz file")
    return DataSource(path.stem, str(path), ("npz", *stamp([path])), lambda _: read_arrays(path, KEYS))


def outline(path: Path) -> str:
    """Number and shape of the samples, from the headers alone."""
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
    samples = {key: (shape[0], " x ".join(map(str, shape[1:]))) for key, shape in shapes.items() if shape}
    if {"train_x", "test_x"} <= samples.keys():
        return f"{samples['train_x'][0]} training and {samples['test_x'][0]} test samples, {samples['train_x'][1]}"
    if "x" in samples:
        return f"{samples['x'][0]} samples, {samples['x'][1]}"
    return "has neither train_x and test_x nor x"
