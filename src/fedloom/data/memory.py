"""Objects in memory become the content of a data set: arrays of numpy or torch, and torch Datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from fedloom.data.arrays import Content
from fedloom.errors import FedloomError, brief, shown
from fedloom.io.archives import Array

TURNED = "images of torch tensors, channels first, were stored channels last"


def array_content(
    train: tuple[Any, Any], test: tuple[Any, Any] | None, groups: dict[str, Any], options: dict[str, Any]
) -> Content:
    """`groups`: client, domain, test_client, test_domain. `options`: names, kind, vocabulary, padding. None: not given."""
    kind = options.get("kind")
    notes: list[str] = []
    given = {name: values for name, values in groups.items() if values is not None}
    if test is None:
        if wrong := [name for name in given if name.startswith("test_")]:
            raise FedloomError(f"{wrong[0]} goes with test_x and test_y, which are not given")
        content = {"x": inputs_of("train_x", train[0], kind, notes), "y": as_array("train_y", train[1])}
        content |= {name: as_array(name, values) for name, values in given.items()}
    else:
        content = {"train_y": as_array("train_y", train[1]), "test_y": as_array("test_y", test[1])}
        for key, x in (("train_x", train[0]), ("test_x", test[0])):
            content[key] = inputs_of(key, x, kind, notes)
        for name, values in given.items():
            content[name if name.startswith("test_") else f"train_{name}"] = as_array(name, values)
    content |= {name: as_array(name, values) for name, values in options.items() if values is not None}
    return content | ({"notes": np.array(notes[:1])} if notes else {})


def torch_content(train: Any, test: Any | None) -> Content:
    """From torch Datasets whose items are pairs of an input and a label."""
    parts = [_stacked("train", train)] + ([_stacked("test", test)] if test is not None else [])
    names = getattr(train, "classes", None)  # torchvision's word
    known = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    numbered = all(as_array("y", y).dtype.kind in "iu" for _, y in parts)
    options = {"class_names": list(names) if known and numbered and names else None}
    return array_content(parts[0], parts[1] if len(parts) > 1 else None, {}, options)


def as_array(name: str, values: Any) -> Array:
    if isinstance(values, torch.Tensor):
        return values.detach().cpu().numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise FedloomError(f"{name} is no array ({brief(str(error))}); samples must have one shape") from None
    if array.dtype.kind == "O":
        if all(isinstance(value, str) for value in array.ravel()):
            return array.astype(str)
        raise FedloomError(f"{name} holds Python objects; expected numbers or texts, one sample per row")
    if array.dtype.kind == "T":  # numpy's texts of any length
        return array.astype(str)
    return array


def inputs_of(name: str, values: Any, kind: str | None, notes: list[str]) -> Array:
    """Images of torch tensors are channels first: they are turned."""
    array = as_array(name, values)
    if isinstance(values, torch.Tensor) and array.ndim == 4 and kind in (None, "image"):
        channels, height, width = array.shape[1:]
        if channels <= min(height, width) and width > 4:
            notes.append(TURNED)
            return np.ascontiguousarray(np.moveaxis(array, 1, -1))
    return array


def _stacked(part: str, dataset: Any) -> tuple[Any, Any]:
    if isinstance(dataset, TensorDataset):
        if len(dataset.tensors) != 2:
            raise FedloomError(
                f"the {part} TensorDataset has {len(dataset.tensors)} tensors; expected inputs and labels"
            )
        return dataset.tensors[0], dataset.tensors[1]
    if not isinstance(dataset, TorchDataset) or not hasattr(dataset, "__len__"):
        raise FedloomError(
            f"the {part} set is {shown(type(dataset).__name__)}; expected a torch Dataset with a length and items (x, y)"
        )
    xs, ys = [], []
    for number in range(len(dataset)):
        item = dataset[number]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise FedloomError(
                f"item {number} of the {part} set is {shown(item)}; expected a pair of an input and a label"
            )
        xs.append(item[0])
        ys.append(item[1].item() if isinstance(item[1], torch.Tensor | np.generic) else item[1])
    if not xs:
        raise FedloomError(f"the {part} set is empty")
    return _stack(part, xs), ys


def _stack(part: str, xs: Sequence[Any]) -> Any:
    try:
        if isinstance(xs[0], torch.Tensor):
            return torch.stack(list(xs))
        return np.stack([np.asarray(x) for x in xs])
    except (RuntimeError, TypeError, ValueError) as error:
        raise FedloomError(
            f"inputs of the {part} set cannot be stacked ({brief(str(error))}); all must have one shape and type"
        ) from None
