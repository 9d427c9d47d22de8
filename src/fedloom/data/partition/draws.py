"""Random draws that are repeated until they are valid, a limited number of times; then an error proposes what works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from math import isfinite
from typing import ClassVar, TypeVar

import numpy as np

from fedloom.data.partition.partition import Index, Partition, group_by_client
from fedloom.data.partition.partitioner import NoValidDraw, Partitioner, Request, larger_values
from fedloom.errors import FedloomError

SMALLEST = 10  # training samples of a client
ADVICE_TRIES = 25  # a proposal must work within this number of draws
T = TypeVar("T")


@dataclass(frozen=True)
class Concentrated(Partitioner):
    """Shares from a Dirichlet distribution: the smaller its concentration, the more skew."""

    concentration: float

    divides_domains: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.concentration > 0 and isfinite(self.concentration)):
            raise FedloomError(f"split {self}: the concentration must be a number above 0; write {self.example}")

    def milder(self) -> Iterator[Partitioner]:
        return larger_values(self, "concentration")


def draw_until_valid(
    partitioner: Partitioner,
    request: Request,
    purpose: str,
    tries: int,
    attempt: Callable[[np.random.Generator], T | None],
) -> T:
    """The first result of `attempt` that is not None."""
    count = len(request.pool)
    if count < SMALLEST * request.clients:
        raise FedloomError(
            request.message(
                partitioner,
                f"each client gets at least {SMALLEST}, and {count} training samples are too few "
                f"for {request.clients} clients; use at most {count // SMALLEST} clients",
            )
        )
    generator = request.generator(purpose, "counts")
    tries = tries if request.tries is None else min(tries, request.tries)
    for _ in range(tries):
        result = attempt(generator)
        if result is not None:
            return result
    raise NoValidDraw(
        request.message(partitioner, f"in {tries} draws some client always held fewer than {SMALLEST} samples")
    )


def partition_or_advise(partitioner: Partitioner, request: Request) -> Partition:
    """Partition, or raise an error that proposes numbers that work: each was tried with the same seed."""
    try:
        return partitioner.partition(request)
    except NoValidDraw as error:
        quick = replace(request, tries=ADVICE_TRIES)
        advice = []
        for milder in islice(partitioner.milder(), 12):
            if _works(milder, quick):
                advice.append(f"{milder} with {request.clients} clients")
                break
        for clients in islice(_fewer(request.clients, partitioner.client_step(request.dataset)), 16):
            if _works(partitioner, replace(quick, clients=clients)):
                advice.append(f"{partitioner} with {clients} clients")
                break
        proposal = f"what works: {', or '.join(advice)}" if advice else "use fewer clients or a larger number"
        raise FedloomError(f"{error}; {proposal}") from None


def _works(partitioner: Partitioner, request: Request) -> bool:
    with suppress(FedloomError):
        partitioner.partition(request)
        return True
    return False


def _fewer(clients: int, step: int) -> Iterator[int]:
    """Smaller numbers of clients, each about a fifth less than the one before."""
    groups = clients // step
    while groups > 1:
        groups = min(groups - 1, groups * 4 // 5)
        yield groups * step


def counts_by_shares(shares: np.ndarray, size: int) -> Index:
    """Cut `size` samples by the cumulative sums of the shares, which need not sum to one; a share of 0 gets none."""
    counts = np.zeros(len(shares), np.int64)
    total = shares.sum()
    if total > 0:
        cuts = (np.cumsum(shares / total) * size).astype(np.int64)
        cuts[np.flatnonzero(shares)[-1] :] = size  # rounding must not leave images for a share of 0 at the end
        counts[:] = np.diff(cuts, prepend=0)
    return counts


def indices_by_class(y: Index, classes: int) -> list[Index]:
    """For each class, its positions in y, in order."""
    return np.split(np.argsort(y, kind="stable"), np.cumsum(np.bincount(y, minlength=classes))[:-1])


def matching_test_images(request: Request, purpose: str, counts: Index) -> tuple[Index, Index]:
    """For each client and class as many test samples as it trains on, or all if there are fewer; clients may share them.

    `counts`: training samples by class and client. Returns index and offsets.
    """
    generator = request.generator(purpose, "test")
    index, client_of = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for row, members in zip(counts, indices_by_class(request.test_y, request.classes), strict=True):
        wanted = np.minimum(row, len(members))
        for client in np.flatnonzero(wanted):
            index.append(members[generator.choice(len(members), wanted[client], replace=False, shuffle=False)])
        client_of.append(np.repeat(np.arange(request.clients), wanted))
    chosen, offsets = group_by_client(np.concatenate(index), np.concatenate(client_of), request.clients)
    return request.test_pool[chosen], offsets
