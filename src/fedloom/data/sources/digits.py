"""The 1797 handwritten digits that come with scikit-learn, 8 x 8 with values 0 to 16: the set that needs nothing.

Every fifth image (0, 5, 10, … of scikit-learn's order) is test, the rest train.
"""

from __future__ import annotations

from importlib import import_module, metadata

import numpy as np

from fedloom.data.arrays import Content
from fedloom.data.sources.source import Source
from fedloom.errors import FedloomError


def digits() -> Source:
    try:
        version = metadata.version("scikit-learn")
    except metadata.PackageNotFoundError as error:
        raise FedloomError(
            'data "digits" comes with scikit-learn, which is missing: pip install scikit-learn'
        ) from error
    return Source("digits", "digits", ("digits", version), _read, scale=16.0)


def _read(_: int | None) -> Content:
    bunch = import_module("sklearn.datasets").load_digits()
    names = np.array([str(name) for name in bunch.target_names])
    return {"x": bunch.images.astype(np.uint8), "y": bunch.target, "class_names": names}
