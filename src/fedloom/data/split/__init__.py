"""Splits: which client holds which samples, and what it sees. Importing this package registers every built-in term."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import numpy.typing as npt

from fedloom.data import partition, shifts
from fedloom.data.dataset import Dataset
from fedloom.data.partition.draws import partition_or_advise
from fedloom.data.partition.partition import Index, Partition
from fedloom.data.partition.partitioner import Partitioner, Request
from fedloom.data.scheme import SCHEMES
from fedloom.data.split.grammar import parse, spell
from fedloom.data.split.view import ClientViews
from fedloom.errors import FedloomError, shown

for _folder in (partition, shifts):
    for _module in iter_modules(_folder.__path__):
        import_module(f"{_folder.__name__}.{_module.name}")


def stages(
    spec: str,
    dataset: Dataset,
    clients: int,
    seed: int,
    pool: npt.NDArray[np.integer] | None = None,
    known: Sequence[Partition] = (),
    further: Index | None = None,
    test_pool: Index | None = None,
) -> tuple[ClientViews, ...]:
    """All stages of a split. They depend on the seed only, not on the method or the machine.

    `pool`: the training samples that clients may hold (default: all). `known`: stored partitions, one per stage, used instead
    of new ones. `further`: training samples that every client also holds. `test_pool`: test samples, sorted (default: all).
    """
    parsed = parse(spec)
    if known and len(known) != len(parsed):
        raise FedloomError(f"split {shown(spec)} has {len(parsed)} stages, but {len(known)} partitions are stored")
    tested = np.arange(len(dataset.test_y)) if test_pool is None else test_pool
    views: list[ClientViews] = []
    partitions: list[Partition] = []
    for number, stage in enumerate(parsed):
        if known:
            partitions.append(known[number])
        elif stage.partitioner is None:
            partitions.append(partitions[-1])
        else:
            scope = () if stage.begin == 1 else ("from", str(stage.begin))  # a later stage has draws of its own
            made = partition_or_advise(stage.partitioner, _request(dataset, clients, seed, pool, tested, scope))
            partitions.append(made if further is None else made.with_extra(further))
        views.append(ClientViews(stage.begin, partitions[-1], stage.shifts, dataset, seed, tested))
    return tuple(views)


def split(
    spec: str, dataset: Dataset, clients: int, seed: int, pool: npt.NDArray[np.integer] | None = None
) -> Partition:
    """The partition of the first stage."""
    return stages(spec, dataset, clients, seed, pool)[0].partition


def stage_rounds(spec: str) -> list[int]:
    """The first round of each stage; 1 for the first stage."""
    return [stage.begin for stage in parse(spec)]


def check_spec(spec: str) -> str:
    """The canonical spelling of a split; raises an error if it is not valid."""
    return spell(parse(spec))


def list_splits() -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "kind": scheme.group,
            "summary": scheme.summary,
            "paper": scheme.paper,
            "parameters": ", ".join(field.name for field in fields(scheme)),
            "example": scheme.example.partition(",")[0],
        }
        for name, scheme in sorted(SCHEMES.items(), key=lambda item: (item[1].group != Partitioner.group, item[0]))
    ]


def _request(
    dataset: Dataset,
    clients: int,
    seed: int,
    pool: npt.NDArray[np.integer] | None,
    test_pool: Index,
    scope: tuple[str, ...],
) -> Request:
    count = len(dataset.train_y)
    allowed = np.arange(count) if pool is None else _checked(pool, count)
    if isinstance(clients, bool) or not isinstance(clients, int) or not 1 <= clients <= len(allowed):
        raise FedloomError(
            f"clients is {clients!r}; allowed is 1 to {len(allowed)}, the number of training samples that clients can hold"
        )
    return Request(dataset, clients, seed, allowed, test_pool, scope)


def _checked(pool: npt.NDArray[np.integer], count: int) -> Index:
    values = np.asarray(pool)
    if values.ndim != 1 or values.dtype.kind not in "iu" or len(values) == 0:
        raise FedloomError("pool must be a non-empty list of indices of training samples")
    allowed = np.unique(values).astype(np.int64)
    if allowed[0] < 0 or allowed[-1] >= count or len(allowed) != len(values):
        raise FedloomError(f"pool must hold indices 0 to {count - 1} of training samples, each once")
    return allowed
