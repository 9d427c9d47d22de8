"""Clients by domain: client k holds samples of domain k // K, with K = clients / domains.

The K clients of a domain divide it at random, or by another partitioner in a sum such as domains+dirichlet:0.3, with
separate draws for each domain. The test samples of a domain are divided among the same clients in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.partition.iid import Iid
from fedloom.data.partition.partition import Partition, offsets_of
from fedloom.data.partition.partitioner import NoValidDraw, Partitioner, Request, sum_rule
from fedloom.data.scheme import register
from fedloom.errors import FedloomError


@register
@dataclass(frozen=True)
class Domains(Partitioner):
    name: ClassVar[str] = "domains"
    summary: ClassVar[str] = (
        "one or more clients per domain; domains+dirichlet:0.3 divides each domain by another partitioner"
    )
    paper: ClassVar[str] = "FedBN 2021"
    example: ClassVar[str] = "domains"

    def partition(self, request: Request) -> Partition:
        return partition_domains(self, Iid(), request)

    def client_step(self, dataset: Dataset) -> int:
        return max(len(dataset.domain_names), 1)


@dataclass(frozen=True)
class WithinDomains(Partitioner):
    """domains+INNER: the clients of each domain divide it by another partitioner."""

    inner: Partitioner

    name: ClassVar[str] = "domains+"
    summary: ClassVar[str] = "the clients of each domain divide it by another partitioner"
    example: ClassVar[str] = "domains+dirichlet:0.3"

    def __str__(self) -> str:
        return f"domains+{self.inner}"

    def milder(self) -> Iterator[Partitioner]:
        return (WithinDomains(inner) for inner in self.inner.milder())

    def client_step(self, dataset: Dataset) -> int:
        return len(dataset.domain_names) * self.inner.client_step(dataset)

    def partition(self, request: Request) -> Partition:
        return partition_domains(self, self.inner, request)


@sum_rule
def _within_domains(one: Partitioner, other: Partitioner) -> Partitioner | None:
    if isinstance(one, Domains) and other.divides_domains:
        return one if isinstance(other, Iid) else WithinDomains(other)
    return None


def partition_domains(outer: Partitioner, inner: Partitioner, request: Request) -> Partition:
    dataset = request.dataset
    if dataset.train_domain is None:
        raise FedloomError(f"split {outer}: {dataset.name} has no domain labels; use another split")
    domain = dataset.train_domain.numpy()[request.pool]
    numbers = np.unique(domain)
    each, over = divmod(request.clients, len(numbers))
    if over or not each:
        fit = " or ".join(str(len(numbers) * k) for k in ((1, 2) if not each else (each, each + 1)))
        raise FedloomError(
            f"split {outer} with {request.clients} clients: {dataset.name} has {len(numbers)} domains, so the number of "
            f"clients must be {len(numbers)} or a multiple of it; what works: {fit} clients"
        )
    test_domain = None if dataset.test_domain is None else dataset.test_domain.numpy()[request.test_pool]
    parts = []
    for number in numbers.tolist():
        within = replace(
            request,
            clients=each,
            pool=request.pool[domain == number],
            test_pool=request.test_pool[:0] if test_domain is None else request.test_pool[test_domain == number],
            scope=(*request.scope, "domain", str(number)),
            where=f" in domain {dataset.domain_names[number]}",
        )
        if each > len(within.pool):
            raise FedloomError(within.message(outer, f"it has {len(within.pool)} training samples; use fewer clients"))
        try:
            parts.append(inner.partition(within))
        except NoValidDraw:
            raise
        except FedloomError as error:
            raise FedloomError(f"{error} (clients of one domain)") from None
    return Partition(
        np.concatenate([part.train_index for part in parts]),
        offsets_of(np.concatenate([np.diff(part.train_offsets) for part in parts])),
        np.concatenate([part.test_index for part in parts]),
        offsets_of(np.concatenate([np.diff(part.test_offsets) for part in parts])),
    )
