"""Label skew with a cap on sizes: for each class, the shares of the clients are drawn from Dir(A). Small A: more skew.

For each class p ~ Dir(A 1_N); p_j is set to zero for clients that already hold n/N samples, p is renormalized, and the
shuffled class is cut by its cumulative sums. Everything is drawn again until the smallest client holds 10 images (Li et
al. 2022; as in FedNTD and FedDr+). Test images follow the training counts: for each class as many as the client trains
on, or all if there are fewer, drawn without replacement per client, so clients may share test samples.

Departure: after a limited number of draws this raises an error; the published code may loop forever. With 100 clients of
CIFAR-10, 23 % of the draws succeed at A = 0.1 and none of 4000 at A = 0.05.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from fedloom.data.partition.partition import Index, Partition, group_by_client
from fedloom.data.partition.partitioner import Request
from fedloom.data.scheme import register


@register
@dataclass(frozen=True)
class Dirichlet(Concentrated):
    name: ClassVar[str] = "dirichlet"
    summary: ClassVar[str] = (
        "the clients' shares of each class drawn from Dir(A), sizes capped near n/N; small A: more skew"
    )
    paper: ClassVar[str] = "Li et al. 2022"
    example: ClassVar[str] = "dirichlet:0.5"

    def partition(self, request: Request) -> Partition:
        sizes = np.bincount(request.train_y, minlength=request.classes)
        tries = max(200, min(2000, 2_000_000 // request.classes // request.clients))  # one or two seconds
        counts = draw_until_valid(
            self, request, "dirichlet", tries, lambda draw: self._attempt(draw, sizes, request.clients)
        )
        order = request.generator("dirichlet", "order")
        train = indices_by_class(request.train_y, request.classes)
        index = request.pool[np.concatenate([order.permutation(members) for members in train])]
        client_of = np.concatenate([np.repeat(np.arange(request.clients), row) for row in counts])
        return Partition(
            *group_by_client(index, client_of, request.clients), *matching_test_images(request, "dirichlet", counts)
        )

    def _attempt(self, generator: np.random.Generator, sizes_of_classes: Index, clients: int) -> Index | None:
        """Numbers of training samples by class and client."""
        cap = sizes_of_classes.sum() / clients
        held = np.zeros(clients, np.int64)
        counts = np.zeros((len(sizes_of_classes), clients), np.int64)
        for row, size in zip(counts, sizes_of_classes, strict=True):
            p = generator.dirichlet(np.full(clients, self.concentration)) * (held < cap)
            if not p.sum() > 0:  # for tiny A all the mass may be on full clients, or lost to rounding
                return None
            row[:] = counts_by_shares(p, size)
            held += row
        return counts if held.min() >= SMALLEST else None
