"""Two tables of measurements that come with scikit-learn: no download needed. Every fifth row is for testing.

Columns are stored as measured, and normalized by the statistics of the training rows (`data.normalize: set`).
"""

from __future__ import annotations

from importlib import import_module, metadata

import numpy as np

from fedloom.data.arrays import Content
from fedloom.data.sources.source import DataSource, data_name
from fedloom.errors import FedloomError


def _register(name: str, summary: str) -> None:
    @data_name(name, f"{summary}; bundled with scikit-learn", bundled=True)
    def open_table() -> DataSource:
        try:
            version = metadata.version("scikit-learn")
        except metadata.PackageNotFoundError as error:
            raise FedloomError(
                f'data "{name}" needs scikit-learn, which is missing: pip install scikit-learn'
            ) from error
        return DataSource(name, name, (name, version), lambda _: _read(name))


def _read(name: str) -> Content:
    bunch = getattr(import_module("sklearn.datasets"), f"load_{name}")()
    names = np.array([str(each) for each in bunch.target_names])
    return {"x": bunch.data, "y": bunch.target, "class_names": names, "kind": np.array("features")}


_register("breast_cancer", "569 tumors, 30 measurements, malignant or benign")
_register("wine", "178 wines of 3 growers, 13 chemical measurements")
