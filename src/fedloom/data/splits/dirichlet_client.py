"""Each client draws its own class prior from Dir(A), and its images one by one from that prior (as FedDyn and FedDC do).

Client k has a prior q_k ~ Dir(A 1_C) and a size: n/N, or with a second number SIGMA a share of n that is lognormal with
that deviation (sizes are drawn again until the smallest is 10). In random order every free place of a client draws a
class from the prior over classes that still have images; when the prior has no mass left there, in proportion to what
is left. All images are given away, so the last places take what remains. Test images: of each class as many as the
client trains on, as far as there are, so clients may share them.

Departure: the published code draws again until it meets a class that is not exhausted, which may never end; here the
prior is renormalised over what is left, which has the same distribution. Its test set stays global; here that is the
pooled test set, and clients have personal ones beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

import numpy as np

from fedloom.data.splits.draws import SMALLEST, matching_tests, places, proportions, settle
from fedloom.data.splits.iid import even
from fedloom.data.splits.partition import Index, Partition, by_owner
from fedloom.data.splits.scheme import Owner, Request, register
from fedloom.errors import FedloomError

BLOCK = 1 << 16  # draws at once


@register
@dataclass(frozen=True)
class DirichletClient(Owner):
    concentration: float
    deviation: float = 0.0  # of the logarithm of sizes

    name: ClassVar[str] = "dirichlet-client"
    summary: ClassVar[str] = "each client's class prior drawn from Dir(A); sizes equal, or lognormal with a deviation"
    paper: ClassVar[str] = "Acar et al. 2021"
    example: ClassVar[str] = "dirichlet-client:0.3, or with lognormal sizes dirichlet-client:0.3:0.5"

    def __post_init__(self) -> None:
        if not (self.concentration > 0 and isfinite(self.concentration)):
            raise FedloomError(f"split {self}: the concentration must be a number above 0; write {self.example}")
        if not (self.deviation >= 0 and isfinite(self.deviation)):
            raise FedloomError(f"split {self}: the deviation of sizes must be 0 or more; write {self.example}")

    def milder(self) -> Iterator[Owner]:
        for share in (0.8, 0.6, 0.4, 0.2, 0.1):
            yield DirichletClient(self.concentration, float(f"{share * self.deviation:.2g}"))

    def deal(self, request: Request) -> Partition:
        if self.deviation:
            sizes = settle(self, request, self.name, 2000, lambda draw: self._sizes(draw, request))
        else:
            sizes = np.diff(even(len(request.pool), request.clients))
        alpha = np.full(request.classes, self.concentration)
        prior = request.generator(self.name, "priors").dirichlet(alpha, request.clients)
        generator = request.generator(self.name, "draws")
        order = generator.permutation(np.repeat(np.arange(request.clients), sizes))
        label = _draw(generator, np.nan_to_num(prior), order, np.bincount(request.train_y, minlength=request.classes))
        counts = np.zeros((request.classes, request.clients), np.int64)
        np.add.at(counts, (label, order), 1)
        train = places(request.train_y, request.classes)
        index = request.pool[np.concatenate([generator.permutation(there) for there in train])]
        owner = np.concatenate([np.repeat(np.arange(request.clients), row) for row in counts])
        return Partition(*by_owner(index, owner, request.clients), *matching_tests(request, self.name, counts))

    def _sizes(self, generator: np.random.Generator, request: Request) -> Index | None:
        sizes = proportions(generator.lognormal(0.0, self.deviation, request.clients), len(request.pool))
        return sizes if sizes.min() >= SMALLEST else None


def _draw(generator: np.random.Generator, prior: np.ndarray, order: Index, left: Index) -> Index:
    """A class for every place; `left` images of each class, as many in all as there are places."""
    label = np.full(len(order), -1, np.int64)
    waiting = np.arange(len(order))
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
            wanted[some] = (u[:, None] >= sums[order[waiting[some]]]).sum(1)
        taken = np.zeros(len(waiting), bool)
        for number in np.flatnonzero(left):
            first = np.flatnonzero(wanted == number)[: left[number]]
            taken[first] = True
            left[number] -= len(first)
        label[waiting[taken]] = wanted[taken]
        waiting = waiting[~taken]  # those who came too late draw again, from what is left
    return label
