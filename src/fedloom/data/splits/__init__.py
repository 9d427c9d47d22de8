"""Splits: who holds which images. One file a scheme; each is found and registered when this package is imported."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import numpy.typing as npt

from fedloom.data.sets import ImageSet
from fedloom.data.splits.partition import Index, Partition
from fedloom.data.splits.scheme import SCHEMES, Request, parse
from fedloom.errors import FedloomError

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def split(
    spec: str, images: ImageSet, clients: int, seed: int, pool: npt.NDArray[np.integer] | None = None
) -> Partition:
    """Deal the images out to clients; it depends on the seed alone, never on the method or the machine.

    Only the training images in the pool are given away, all by default; the others are for validation.
    """
    schemes = parse(spec)
    count = len(images.train_y)
    allowed = np.arange(count) if pool is None else _checked(pool, count)
    if isinstance(clients, bool) or not isinstance(clients, int) or not 1 <= clients <= len(allowed):
        raise FedloomError(
            f"clients is {clients!r}; allowed is 1 to {len(allowed)}, the training images there are to deal out"
        )
    request = Request(images.train_y.numpy(), images.test_y.numpy(), images.classes, clients, seed, allowed)
    owner = next(scheme for scheme in schemes if scheme.owns)
    return owner.deal(request)


def check_spec(spec: str) -> str:
    """The split in its one canonical spelling, or a sentence about what is wrong with it."""
    return "+".join(str(scheme) for scheme in parse(spec))


def list_splits() -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "summary": scheme.summary,
            "paper": scheme.paper,
            "parameters": ", ".join(field.name for field in fields(scheme)),
            "example": scheme.example,
        }
        for name, scheme in sorted(SCHEMES.items())
    ]


def _checked(pool: npt.NDArray[np.integer], count: int) -> Index:
    values = np.asarray(pool)
    if values.ndim != 1 or values.dtype.kind not in "iu" or len(values) == 0:
        raise FedloomError("pool must be a list of at least one index of a training image")
    allowed = np.unique(values).astype(np.int64)
    if allowed[0] < 0 or allowed[-1] >= count or len(allowed) != len(values):
        raise FedloomError(f"pool must hold indices 0 to {count - 1} of training images, each once")
    return allowed
