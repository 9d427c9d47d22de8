"""Splits: who holds which images, and what each holder sees. One file a scheme, found when this package is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import numpy.typing as npt

from fedloom.data.sets import ImageSet
from fedloom.data.splits.draws import advised
from fedloom.data.splits.grammar import parse, spell
from fedloom.data.splits.holding import Holding
from fedloom.data.splits.partition import Index, Partition
from fedloom.data.splits.scheme import SCHEMES, Request
from fedloom.errors import FedloomError, shown

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def stages(
    spec: str,
    images: ImageSet,
    clients: int,
    seed: int,
    pool: npt.NDArray[np.integer] | None = None,
    known: Sequence[Partition] = (),
    further: Index | None = None,
) -> tuple[Holding, ...]:
    """All stages of a split; it depends on the seed alone, never on the method or the machine.

    Only the training images in the pool are given away, all by default; the others are for validation. `known`: the
    partitions, if they have been dealt before. `further`: training images that every client holds beside its own.
    """
    parsed = parse(spec)
    if known and len(known) != len(parsed):
        raise FedloomError(f"split {shown(spec)} has {len(parsed)} stages, and {len(known)} partitions are stored")
    found: list[Holding] = []
    partitions: list[Partition] = []
    for number, stage in enumerate(parsed):
        if known:
            partitions.append(known[number])
        elif stage.owner is None:
            partitions.append(partitions[-1])
        else:
            scope = () if stage.begin == 1 else ("from", str(stage.begin))  # the same scheme again deals anew
            dealt = advised(stage.owner, _request(images, clients, seed, pool, scope))
            partitions.append(dealt if further is None else dealt.given(further))
        found.append(Holding(stage.begin, partitions[-1], stage.changes, images, seed))
    return tuple(found)


def split(
    spec: str, images: ImageSet, clients: int, seed: int, pool: npt.NDArray[np.integer] | None = None
) -> Partition:
    """Who holds what at first."""
    return stages(spec, images, clients, seed, pool)[0].partition


def stage_rounds(spec: str) -> list[int]:
    """The rounds in which the stages of a split begin; the first is 1."""
    return [stage.begin for stage in parse(spec)]


def check_spec(spec: str) -> str:
    """The split in its one canonical spelling, or a sentence about what is wrong with it."""
    return spell(parse(spec))


def list_splits() -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "kind": "who holds what" if scheme.owns else "what is seen",
            "summary": scheme.summary,
            "paper": scheme.paper,
            "parameters": ", ".join(field.name for field in fields(scheme)),
            "example": scheme.example.partition(",")[0],
        }
        for name, scheme in sorted(SCHEMES.items(), key=lambda item: (not item[1].owns, item[0]))
    ]


def _request(
    images: ImageSet, clients: int, seed: int, pool: npt.NDArray[np.integer] | None, scope: tuple[str, ...]
) -> Request:
    count = len(images.train_y)
    allowed = np.arange(count) if pool is None else _checked(pool, count)
    if isinstance(clients, bool) or not isinstance(clients, int) or not 1 <= clients <= len(allowed):
        raise FedloomError(
            f"clients is {clients!r}; allowed is 1 to {len(allowed)}, the training images there are to deal out"
        )
    return Request(images, clients, seed, allowed, np.arange(len(images.test_y)), scope)


def _checked(pool: npt.NDArray[np.integer], count: int) -> Index:
    values = np.asarray(pool)
    if values.ndim != 1 or values.dtype.kind not in "iu" or len(values) == 0:
        raise FedloomError("pool must be a list of at least one index of a training image")
    allowed = np.unique(values).astype(np.int64)
    if allowed[0] < 0 or allowed[-1] >= count or len(allowed) != len(values):
        raise FedloomError(f"pool must hold indices 0 to {count - 1} of training images, each once")
    return allowed
