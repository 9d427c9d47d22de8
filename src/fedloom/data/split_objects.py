"""What `split` may be in Python beside a text: index arrays, which are stored in the cache, or a function that makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedloom.data.dataset import Dataset
from fedloom.data.partition.indices import store_indices
from fedloom.data.partition.partition import Index, Partition
from fedloom.errors import FedloomError, shown
from fedloom.rng import numpy_generator

Indices: TypeAlias = Sequence[int] | Set[int] | npt.NDArray[np.integer]
EachClient: TypeAlias = Sequence[Indices] | Mapping[int, Indices]
SplitFunction: TypeAlias = Callable[[npt.NDArray[np.int64], int, np.random.Generator], EachClient]
SplitLike: TypeAlias = str | EachClient | Mapping[str, Any] | Partition | SplitFunction

ALLOWED = (
    "a text, a list with an array of training indices for each client, {'train': ..., 'test': ..., 'overlap': True}, "
    "the .partition of an fl.split, or a function (labels, clients, rng) that returns such a list"
)
KEYS = ("train", "test", "overlap")
TERM = "function:"
_functions: dict[str, SplitFunction] = {}
_numbers = count()


def named_split(value: Any) -> tuple[str, int | None]:
    """The fields `split` and `clients` of a recipe; clients is None where it stays as it is."""
    if isinstance(value, str):
        return value, None
    if callable(value):
        key = f"{TERM}{getattr(value, '__name__', 'function')}-{next(_numbers)}"
        _functions[key] = value
        return key, None
    if isinstance(value, Partition):
        parts = {"train": value.train, "test": value.test}
        value = {name: [part(client) for client in range(value.clients)] for name, part in parts.items()}
        value["overlap"] = True
    train, test = _checked(value)
    return store_indices(train, test), len(train)


def is_function(split: str) -> bool:
    return split.startswith(TERM)


def call_function(split: str, dataset: Dataset, clients: int, seed: int, pool: Index | None) -> str:
    """What a recipe calls the split that a function makes. It sees the labels of those samples that clients may hold."""
    function = _functions.get(split)
    if function is None:
        raise FedloomError(f"split: {shown(split)} is a function of another process; pass it again")
    allowed = np.arange(len(dataset.train_y)) if pool is None else pool
    made = function(dataset.train_y.numpy()[allowed], clients, numpy_generator(seed, "split", "function"))
    train, test = _checked(made)
    if len(train) != clients:
        raise FedloomError(f"split: the function returned {len(train)} arrays, but clients is {clients}")
    for client, rows in enumerate(train):
        if len(rows) and rows.max() >= len(allowed):
            raise FedloomError(
                f"split: the function gave client {client} the index {rows.max()}; labels has {len(allowed)} entries"
            )
    return store_indices([allowed[rows] for rows in train], test)


def _checked(value: Any) -> tuple[list[Index], list[Index]]:
    """Training and test indices of every client; no test indices where they are not given."""
    whole = value if isinstance(value, Mapping) and any(isinstance(key, str) for key in value) else {"train": value}
    if unknown := [key for key in whole if key not in KEYS]:
        raise FedloomError(f"split: the key {shown(unknown[0])} is unknown; allowed are {', '.join(KEYS)}")
    train = _arrays(whole.get("train"), "train")
    test = [] if whole.get("test") is None else _arrays(whole["test"], "test")
    if test and len(test) != len(train):
        raise FedloomError(
            f"split: train has {len(train)} arrays and test {len(test)}; expected one per client in both"
        )
    if not whole.get("overlap", False):
        _refuse_overlap(train)
    return train, test


def _arrays(value: Any, part: str) -> list[Index]:
    if isinstance(value, Mapping):  # client number -> indices
        if sorted(value) != list(range(len(value))):
            raise FedloomError(f"split: clients are numbered {shown(list(value))}; expected 0, 1, 2 and so on")
        value = [value[client] for client in range(len(value))]
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes) or not len(value):
        raise FedloomError(f"split is {shown(value)}; allowed are {ALLOWED}")
    return [_array(rows, client, part) for client, rows in enumerate(value)]


def _array(rows: Any, client: int, part: str) -> Index:
    if isinstance(rows, Set):
        rows = sorted(rows)
    try:
        values = np.asarray(rows)
    except ValueError:
        values = np.empty((0, 0))
    if values.ndim != 1 or (values.dtype.kind not in "iu" and len(values)):
        raise FedloomError(
            f"split: {part} samples of client {client} are {shown(rows)}; expected a list of whole numbers, the indices"
        )
    if not len(values) and part == "train":
        raise FedloomError(f"split: client {client} has no training samples")
    values = values.astype(np.int64)
    if len(values) and values.min() < 0:
        raise FedloomError(f"split: client {client} holds {part} sample {values.min()}; an index is 0 or more")
    if (sample := _repeated(values)) is not None:
        raise FedloomError(f"split: client {client} holds {part} sample {sample} twice")
    return values


def _refuse_overlap(train: Sequence[Index]) -> None:
    if (sample := _repeated(np.concatenate(train))) is not None:
        one, other = [client for client, rows in enumerate(train) if sample in rows][:2]
        raise FedloomError(
            f"split: clients {one} and {other} both hold training sample {sample}; if that is meant, pass "
            "split={'train': [...], 'overlap': True}"
        )


def _repeated(values: Index) -> int | None:
    unique, counts = np.unique(values, return_counts=True)
    return int(unique[counts > 1][0]) if (counts > 1).any() else None
