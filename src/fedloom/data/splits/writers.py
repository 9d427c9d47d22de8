"""Natural clients: client k holds the images of one writer, in order of their numbers.

With fewer clients than writers, that many writers are drawn; nobody holds the images of the others. A writer's test
images are those of the set that have the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedloom.data.splits.partition import Index, Partition, by_owner
from fedloom.data.splits.scheme import Owner, Request, register
from fedloom.errors import FedloomError


@register
@dataclass(frozen=True)
class Writers(Owner):
    name: ClassVar[str] = "writers"
    summary: ClassVar[str] = "natural clients: one writer each, drawn if there are more writers than clients"
    paper: ClassVar[str] = "Caldas et al. 2018"
    example: ClassVar[str] = "writers"

    def deal(self, request: Request) -> Partition:
        images = request.images
        if images.train_writer is None:
            raise FedloomError(f"split writers: {images.name} does not say who wrote its images; use another split")
        writer = images.train_writer.numpy()[request.pool]
        known = np.unique(writer)
        if request.clients > len(known):
            raise FedloomError(
                f"split writers with {request.clients} clients: {images.name} has training images of {len(known)} "
                f"writers; use at most {len(known)} clients"
            )
        chosen = known
        if request.clients < len(known):
            chosen = np.sort(request.generator("writers").choice(known, request.clients, replace=False))
        tested = np.full(len(request.test_pool), -1)
        if images.test_writer is not None:
            tested = images.test_writer.numpy()[request.test_pool]
        return Partition(*_of(request.pool, writer, chosen), *_of(request.test_pool, tested, chosen))


def _of(pool: Index, writer: Index, chosen: Index) -> tuple[Index, Index]:
    place = np.minimum(np.searchsorted(chosen, writer), len(chosen) - 1)
    held = chosen[place] == writer
    return by_owner(pool[held], place[held], len(chosen))
