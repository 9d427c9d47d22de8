"""Drawing again until a division will do: a bounded number of times, then a sentence that says what would work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TypeVar

import numpy as np

from fedloom.data.splits.partition import Index, Partition, by_owner
from fedloom.data.splits.scheme import Owner, Request, Unsettled
from fedloom.errors import FedloomError

SMALLEST = 10  # training images of a client
ADVISED = 25  # draws in which advice has to work
T = TypeVar("T")


def settle(
    owner: Owner, request: Request, purpose: str, tries: int, attempt: Callable[[np.random.Generator], T | None]
) -> T:
    """The first draw that will do."""
    count = len(request.pool)
    if count < SMALLEST * request.clients:
        raise FedloomError(
            request.sentence(
                owner,
                f"each client gets at least {SMALLEST} images, and {count} training images are too few "
                f"for {request.clients} clients; use at most {count // SMALLEST} clients",
            )
        )
    generator = request.generator(purpose, "counts")
    tries = tries if request.tries is None else min(tries, request.tries)
    for _ in range(tries):
        found = attempt(generator)
        if found is not None:
            return found
    raise Unsettled(request.sentence(owner, f"in {tries} draws some client always held fewer than {SMALLEST} images"))


def advised(owner: Owner, request: Request) -> Partition:
    """Deal, or say which number and which count of clients would work: both were tried, with this very seed."""
    try:
        return owner.deal(request)
    except Unsettled as error:
        quick = replace(request, tries=ADVISED)
        advice = []
        for other in islice(owner.milder(), 12):
            if _works(other, quick):
                advice.append(f"{other} with {request.clients} clients")
                break
        for clients in islice(_fewer(request.clients, owner.client_step(request.images)), 16):
            if _works(owner, replace(quick, clients=clients)):
                advice.append(f"{owner} with {clients} clients")
                break
        instead = ", or ".join(advice)
        what = f"what works is {instead}" if advice else "use fewer clients or a larger number"
        raise FedloomError(f"{error}; {what}") from None


def _works(owner: Owner, request: Request) -> bool:
    with suppress(FedloomError):
        owner.deal(request)
        return True
    return False


def _fewer(clients: int, step: int) -> Iterator[int]:
    """Fewer clients, by about a fifth each time."""
    groups = clients // step
    while groups > 1:
        groups = min(groups - 1, groups * 4 // 5)
        yield groups * step


def proportions(p: np.ndarray, size: int) -> Index:
    """So many images cut by the cumulative sums of p, which need not sum to one; nobody with p = 0 gets any."""
    counts = np.zeros(len(p), np.int64)
    total = p.sum()
    if total > 0:
        cuts = (np.cumsum(p / total) * size).astype(np.int64)
        cuts[np.flatnonzero(p)[-1] :] = size  # rounding leaves nothing over for those at the end
        counts[:] = np.diff(cuts, prepend=0)
    return counts


def places(y: Index, classes: int) -> list[Index]:
    """Places of each class in y, in order."""
    return np.split(np.argsort(y, kind="stable"), np.cumsum(np.bincount(y, minlength=classes))[:-1])


def matching_tests(request: Request, purpose: str, counts: Index) -> tuple[Index, Index]:
    """Of each class as many test images as a client trains on, as far as there are; clients may share them.

    `counts`: training images by class and client.
    """
    generator = request.generator(purpose, "test")
    index, owner = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for row, there in zip(counts, places(request.test_y, request.classes), strict=True):
        wanted = np.minimum(row, len(there))
        for client in np.flatnonzero(wanted):
            index.append(there[generator.choice(len(there), wanted[client], replace=False, shuffle=False)])
        owner.append(np.repeat(np.arange(request.clients), wanted))
    chosen, offsets = by_owner(np.concatenate(index), np.concatenate(owner), request.clients)
    return request.test_pool[chosen], offsets
