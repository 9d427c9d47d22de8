"""Capped latent Dirichlet allocation: class proportions by client from Dir(A), the smaller A the more skewed.

For each class p ~ Dir(A 1_N); p_j becomes zero for clients that hold n/N images already, p is renormalised and the
shuffled class is cut by its cumulative sums. The whole is drawn again until the smallest client holds 10 images (Li et
al. 2022; as in FedNTD and FedDr+). Personal test images follow the training counts: of each class as many as a client
trains on, as far as there are, drawn without replacement for each client, so clients may share test images.

Departure: the draw is given up with a sentence after a bounded number of attempts, where the published code may never
end: 100 clients of CIFAR-10 succeed in 23 % of the draws at A = 0.1 and in none of 4000 at A = 0.05.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

import numpy as np

from fedloom.data.splits.draws import SMALLEST, matching_tests, places, proportions, settle
from fedloom.data.splits.partition import Index, Partition, by_owner
from fedloom.data.splits.scheme import Owner, Request, larger, register
from fedloom.errors import FedloomError


@register
@dataclass(frozen=True)
class Dirichlet(Owner):
    concentration: float

    name: ClassVar[str] = "dirichlet"
    summary: ClassVar[str] = "class proportions by client drawn from Dir(A), sizes capped; small A is skewed"
    paper: ClassVar[str] = "Li et al. 2022"
    example: ClassVar[str] = "dirichlet:0.5"

    def __post_init__(self) -> None:
        if not (self.concentration > 0 and isfinite(self.concentration)):
            raise FedloomError(f"split {self}: the concentration must be a number above 0; write {self.example}")

    def milder(self) -> Iterator[Owner]:
        return larger(self, "concentration")

    def deal(self, request: Request) -> Partition:
        sizes = np.bincount(request.train_y, minlength=request.classes)
        tries = max(200, min(2000, 2_000_000 // request.classes // request.clients))  # a second or two
        counts = settle(self, request, "dirichlet", tries, lambda draw: self._attempt(draw, sizes, request.clients))
        order = request.generator("dirichlet", "order")
        train = places(request.train_y, request.classes)
        index = request.pool[np.concatenate([order.permutation(there) for there in train])]
        owner = np.concatenate([np.repeat(np.arange(request.clients), row) for row in counts])
        return Partition(*by_owner(index, owner, request.clients), *matching_tests(request, "dirichlet", counts))

    def _attempt(self, generator: np.random.Generator, sizes_of_classes: Index, clients: int) -> Index | None:
        """Training images by class and client."""
        cap = sizes_of_classes.sum() / clients
        held = np.zeros(clients, np.int64)
        counts = np.zeros((len(sizes_of_classes), clients), np.int64)
        for row, size in zip(counts, sizes_of_classes, strict=True):
            p = generator.dirichlet(np.full(clients, self.concentration)) * (held < cap)
            if not p.sum() > 0:  # for tiny A all the mass may lie on full clients, or be lost to rounding
                return None
            row[:] = proportions(p, size)
            held += row
        return counts if held.min() >= SMALLEST else None
