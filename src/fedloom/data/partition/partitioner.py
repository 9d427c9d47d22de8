"""A partitioner decides which client holds which samples. One per file in this folder; each registers itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import ClassVar, TypeVar

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.partition.partition import Index, Partition
from fedloom.data.scheme import Scheme
from fedloom.errors import FedloomError
from fedloom.io.user_code import same_origin
from fedloom.rng import numpy_generator


@dataclass(frozen=True, eq=False)
class Request:
    """What to partition: the samples of two pools, among this number of clients."""

    dataset: Dataset
    clients: int
    seed: int
    pool: Index  # training samples, sorted
    test_pool: Index
    scope: tuple[str, ...] = ()  # key of the generators, if the same partitioner is used elsewhere in the split
    where: str = ""  # for error messages: the domain
    tries: int | None = None  # limit on the number of draws, if lower than the partitioner's own

    def generator(self, *purpose: str) -> np.random.Generator:
        return numpy_generator(self.seed, "split", *self.scope, *purpose)

    @property
    def classes(self) -> int:
        return self.dataset.classes

    @property
    def train_y(self) -> Index:
        """Labels of `pool`."""
        return np.asarray(self.dataset.train_y.numpy()[self.pool], dtype=np.int64)

    @property
    def test_y(self) -> Index:
        """Labels of `test_pool`."""
        return np.asarray(self.dataset.test_y.numpy()[self.test_pool], dtype=np.int64)

    def message(self, scheme: Scheme, text: str) -> str:
        return f"split {scheme} with {self.clients} clients{self.where}: {text}"


class Partitioner(Scheme):
    group: ClassVar[str] = "who holds what"
    divides_domains: ClassVar[bool] = False  # whether domains+NAME may use it inside each domain

    @abstractmethod
    def partition(self, request: Request) -> Partition: ...

    def milder(self) -> Iterator[Partitioner]:
        """Less extreme versions of this partitioner, nearest first: proposals for when this one fails."""
        return iter(())

    def client_step(self, dataset: Dataset) -> int:
        """Only multiples of this number of clients can work."""
        return 1


SumRule = Callable[[Partitioner, Partitioner], Partitioner | None]
SUM_RULES: list[SumRule] = []


def sum_rule(rule: SumRule) -> SumRule:
    """Register what a sum of two partitioners means: the rule returns one partitioner, or None for other pairs."""
    # an edited version of the same file replaces its rule
    SUM_RULES[:] = [r for r in SUM_RULES if not (same_origin(r, rule) and r.__name__ == rule.__name__)] + [rule]
    return rule


def combined(terms: Sequence[Partitioner]) -> Partitioner | None:
    """The one partitioner that a sum of them means; None if no rule applies to some of them."""
    if len(terms) == 1:
        return terms[0]
    for one, other in permutations(range(len(terms)), 2):
        for rule in SUM_RULES:
            both = rule(terms[one], terms[other])
            if both is not None:
                rest = [term for place, term in enumerate(terms) if place not in (one, other)]
                if (total := combined([*rest, both])) is not None:
                    return total
    return None


P = TypeVar("P", bound=Partitioner)


def larger_values(partitioner: P, field: str) -> Iterator[P]:
    """The partitioner with the next larger round numbers in this field: 0.1, 0.2, 0.3, 0.5, 1, …"""
    value = getattr(partitioner, field)
    for power in range(-4, 4):
        for step in (1, 2, 3, 5):
            number = float(f"{step}e{power}")
            if number > value:
                yield replace(partitioner, **{field: number})


class NoValidDraw(FedloomError):
    """None of a limited number of random draws was valid."""
