"""Clients by domain: client k holds images of domain k // K, where K = clients / domains (one client a domain: K = 1).

Inside a domain its K clients divide it at random, or, in a sum such as domains+dirichlet:0.3, by another scheme, each
domain with draws of its own. Test images of a domain are divided in the same way among the same clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedloom.data.sets import ImageSet
from fedloom.data.splits.iid import Iid
from fedloom.data.splits.partition import Partition, offsets_of
from fedloom.data.splits.scheme import Owner, Request, Unsettled, register
from fedloom.errors import FedloomError


@register
@dataclass(frozen=True)
class Domains(Owner):
    name: ClassVar[str] = "domains"
    summary: ClassVar[str] = "one client a domain, or K; domains+dirichlet:0.3 divides each domain by another scheme"
    paper: ClassVar[str] = "FedBN 2021"
    example: ClassVar[str] = "domains"

    def deal(self, request: Request) -> Partition:
        return deal_domains(self, Iid(), request)

    def client_step(self, images: ImageSet) -> int:
        return max(len(images.domain_names), 1)


@dataclass(frozen=True)
class Inside(Owner):
    """The clients of each domain divide it by this scheme."""

    inner: Owner

    name: ClassVar[str] = "domains+"
    summary: ClassVar[str] = "clients of a domain divide it by another scheme"
    example: ClassVar[str] = "domains+dirichlet:0.3"

    def __str__(self) -> str:
        return f"domains+{self.inner}"

    def milder(self) -> Iterator[Owner]:
        return (Inside(inner) for inner in self.inner.milder())

    def client_step(self, images: ImageSet) -> int:
        return len(images.domain_names) * self.inner.client_step(images)

    def deal(self, request: Request) -> Partition:
        return deal_domains(self, self.inner, request)


def deal_domains(owner: Owner, inner: Owner, request: Request) -> Partition:
    images = request.images
    if images.train_domain is None:
        raise FedloomError(f"split {owner}: {images.name} does not say the domain of its images; use another split")
    domain = images.train_domain.numpy()[request.pool]
    numbers = np.unique(domain)
    each, over = divmod(request.clients, len(numbers))
    if over or not each:
        fit = " or ".join(str(len(numbers) * k) for k in ((1, 2) if not each else (each, each + 1)))
        raise FedloomError(
            f"split {owner} with {request.clients} clients: {images.name} has {len(numbers)} domains, so the clients "
            f"must be {len(numbers)} or a multiple of it; what works is {fit} clients"
        )
    tested = None if images.test_domain is None else images.test_domain.numpy()[request.test_pool]
    parts = []
    for number in numbers.tolist():
        within = replace(
            request,
            clients=each,
            pool=request.pool[domain == number],
            test_pool=request.test_pool[:0] if tested is None else request.test_pool[tested == number],
            scope=(*request.scope, "domain", str(number)),
            where=f" in domain {images.domain_names[number]}",
        )
        if each > len(within.pool):
            raise FedloomError(within.sentence(owner, f"it has {len(within.pool)} training images; use fewer clients"))
        try:
            parts.append(inner.deal(within))
        except Unsettled:
            raise
        except FedloomError as error:
            raise FedloomError(f"{error} (clients of one domain)") from None
    return Partition(
        np.concatenate([part.train_index for part in parts]),
        offsets_of(np.concatenate([np.diff(part.train_offsets) for part in parts])),
        np.concatenate([part.test_index for part in parts]),
        offsets_of(np.concatenate([np.diff(part.test_offsets) for part in parts])),
    )
