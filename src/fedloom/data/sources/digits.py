"""The 1797 handwritten digits that come with scikit-learn, 8 x 8 with values 0 to 16: no download needed.

Every fifth image (0, 5, 10, … in scikit-learn's order) is for testing.
"""

from __future__ import annotations

from importlib import import_module, metadata

import numpy as np

from fedloom.data.arrays import Content
from fedloom.data.sources.source import DataSource, data_name
from fedloom.errors import FedloomError


@data_name(
    "digits",
    "1797 handwritten digits, 8 x 8, bundled with scikit-learn; every fifth image is for testing",
    bundled=True,
)
def open_digits() -> DataSource:
    try:
        version = metadata.version("scikit-learn")
    except metadata.PackageNotFoundError as error:
        raise FedloomError('data "digits" needs scikit-learn, which is missing: pip install scikit-learn') from error
    return DataSource("digits", "digits", ("digits", version), _read, scale=16.0)


def _read(_: int | None) -> Content:
    bunch = import_module("sklearn.datasets").load_digits()
    names = np.array([str(name) for name in bunch.target_names])
    return {"x": bunch.images.astype(np.uint8), "y": bunch.target, "class_names": names}
