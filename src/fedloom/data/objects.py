"""What `data` may be in Python beside a text: an object, which is stored in the cache and named by its content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset

from fedloom.data.dataset import Dataset
from fedloom.errors import FedloomError, shown


class HubDataset(Protocol):
    """What a Dataset or DatasetDict of Hugging Face has in common."""

    @property
    def column_names(self) -> Any: ...


DataLike: TypeAlias = str | Path | Mapping[str, Any] | Dataset | TorchDataset[Any] | Sequence[Any] | HubDataset

ALLOWED = (
    "a text, an fl.Dataset, a torch Dataset or a pair of them, a tuple of arrays (train_x, train_y) or "
    "(train_x, train_y, test_x, test_y), or a Hugging Face Dataset"
)


def named_data(value: Any) -> Any:
    """The field `data` of a recipe: a text or a mapping that names no object."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping) and not _of(value, "datasets"):
        return {**value, "name": named_data(value["name"])} if "name" in value else value
    return dataset_of(value).source


def dataset_of(value: Any) -> Dataset:
    if isinstance(value, Dataset):
        if not value.source:
            raise FedloomError(
                f"data: {value.name} was resized or divided anew; name its source, and set data.resize and data.test_every "
                "in the recipe"
            )
        return value
    if _of(value, "pandas"):
        columns = [str(name) for name in getattr(value, "columns", [])]
        target = columns[-1] if columns else "COLUMN"
        raise FedloomError(
            "data: a DataFrame needs to know its target; write data=fl.Dataset.from_frame(frame, "
            f"target={target!r}), and client=COLUMN if a column names the clients"
        )
    if _of(value, "datasets"):
        return Dataset.from_hf(value)
    if isinstance(value, TorchDataset):
        return Dataset.from_torch(value)
    if isinstance(value, tuple | list):
        if len(value) == 2 and all(isinstance(part, TorchDataset) for part in value):
            return Dataset.from_torch(*value)
        if len(value) in (2, 4) and all(isinstance(part, np.ndarray | torch.Tensor) for part in value):
            return Dataset.from_arrays(*value)
    raise FedloomError(f"data is {shown(type(value).__name__)}; allowed are {ALLOWED}")


def _of(value: Any, package: str) -> bool:
    return any(kind.__module__.partition(".")[0] == package for kind in type(value).__mro__)
