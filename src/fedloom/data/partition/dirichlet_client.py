"""Label skew by client: each client draws a class prior from Dir(A), then its images one by one (FedDyn, FedDC).

Client k has a prior q_k ~ Dir(A 1_C) and a size: n/N, or with a second number SIGMA a lognormal share of n with that
deviation (sizes are drawn again until the smallest is 10). In random order, each free slot of a client draws a class from
its prior over the classes that have images left; if the prior has no mass on these, in proportion to the images left. All
images are assigned, so the last slots take what remains. Test images: for each class as many as the client trains on, or
all if there are fewer, so clients may share them.

Departure: the published code redraws until it finds a class with images left, and may loop forever. Here the prior is
renormalized over the classes left, which has the same distribution. Its test set is global; here that is the pooled test
set, and each client also has test samples of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

import numpy as np

from fedloom.data.partition.draws import (
    SMALLEST,
    Concentrated,
    counts_by_shares,
    draw_until_valid,
    indices_by_class,
    matching_test_images,
)
from fedloom.data.partition.iid import equal_offsets
from fedloom.data.partition.partition import Index, Partition, group_by_client
from fedloom.data.partition.partitioner import Partitioner, Request
from fedloom.data.scheme import register
from fedloom.errors import FedloomError

BLOCK = 1 << 16  # number of draws at a time


@register
@dataclass(frozen=True)
class DirichletClient(Concentrated):
    deviation: float = 0.0  # of the logarithm of the sizes; 0: equal sizes

    name: ClassVar[str] = "dirichlet-client"
    summary: ClassVar[str] = (
        "each client's class prior drawn from Dir(A); equal sizes, or lognormal with a second number SIGMA"
    )
    paper: ClassVar[str] = "Acar et al. 2021"
    example: ClassVar[str] = "dirichlet-client:0.3, or with lognormal sizes dirichlet-client:0.3:0.5"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.deviation >= 0 and isfinite(self.deviation)):
            raise FedloomError(f"split {self}: the deviation of sizes must be 0 or more; write {self.example}")

    def milder(self) -> Iterator[Partitioner]:
        for share in (0.8, 0.6, 0.4, 0.2, 0.1):
            yield DirichletClient(self.concentration, float(f"{share * self.deviation:.2g}"))

    def partition(self, request: Request) -> Partition:
        if self.deviation:
            sizes = draw_until_valid(self, request, self.name, 2000, lambda draw: self._sizes(draw, request))
        else:
            sizes = np.diff(equal_offsets(len(request.pool), request.clients))
        alpha = np.full(request.classes, self.concentration)
        prior = request.generator(self.name, "priors").dirichlet(alpha, request.clients)
        generator = request.generator(self.name, "draws")
        slots = generator.permutation(np.repeat(np.arange(request.clients), sizes))
        label = _draw(generator, np.nan_to_num(prior), slots, np.bincount(request.train_y, minlength=request.classes))
        counts = np.zeros((request.classes, request.clients), np.int64)
        np.add.at(counts, (label, slots), 1)
        train = indices_by_class(request.train_y, request.classes)
        index = request.pool[np.concatenate([generator.permutation(members) for members in train])]
        client_of = np.concatenate([np.repeat(np.arange(request.clients), row) for row in counts])
        return Partition(
            *group_by_client(index, client_of, request.clients), *matching_test_images(request, self.name, counts)
        )

    def _sizes(self, generator: np.random.Generator, request: Request) -> Index | None:
        sizes = counts_by_shares(generator.lognormal(0.0, self.deviation, request.clients), len(request.pool))
        return sizes if sizes.min() >= SMALLEST else None


def _draw(generator: np.random.Generator, prior: np.ndarray, slots: Index, left: Index) -> Index:
    """A class for every slot. `slots`: the client of each; `left`: samples of each class, in total one per slot."""
    label = np.full(len(slots), -1, np.int64)
    waiting = np.arange(len(slots))
    left = left.copy()
    while len(waiting):
        mass = prior * (left > 0)
        mass = np.where(mass.sum(1, keepdims=True) > 0, mass, left / left.sum())
        sums = np.cumsum(mass, axis=1)
        sums /= sums[:, -1:]
        wanted = np.empty(len(waiting), np.int64)
        for begin in range(0, len(waiting), BLOCK):
            some = slice(begin, begin + BLOCK)
            u = generator.random(len(waiting[some]))
            wanted[some] = (u[:, None] >= sums[slots[waiting[some]]]).sum(1)
        taken = np.zeros(len(waiting), bool)
        for number in np.flatnonzero(left):
            first = np.flatnonzero(wanted == number)[: left[number]]
            taken[first] = True
            left[number] -= len(first)
        label[waiting[taken]] = wanted[taken]
        waiting = waiting[~taken]  # slots whose class ran out draw again
    return label
