"""What the terms of a split are. An owner decides who holds what; a change makes a client see its images otherwise.

A term is a frozen dataclass whose fields are its numbers, checked when it is made. It registers itself; a new one is
a new file in this folder and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from fedloom.data.sets import ImageSet
from fedloom.data.splits.partition import Index, Partition
from fedloom.errors import FedloomError
from fedloom.keys import numpy_generator

Pixels = npt.NDArray[np.float64]
Part = Literal["train", "test"]


@dataclass(frozen=True, eq=False)
class Request:
    """What an owner deals out: the images of two pools, to so many clients."""

    images: ImageSet
    clients: int
    seed: int
    pool: Index  # training images, sorted
    test_pool: Index
    scope: tuple[str, ...] = ()  # what sets its draws apart from those of the same scheme elsewhere in the split
    where: str = ""  # for sentences: the domain it deals out
    tries: int | None = None  # draws before giving up, if fewer than usual

    def generator(self, *purpose: str) -> np.random.Generator:
        return numpy_generator(self.seed, "split", *self.scope, *purpose)

    @property
    def classes(self) -> int:
        return self.images.classes

    @property
    def train_y(self) -> Index:
        """Of the pool, in its order."""
        return np.asarray(self.images.train_y.numpy()[self.pool], dtype=np.int64)

    @property
    def test_y(self) -> Index:
        return np.asarray(self.images.test_y.numpy()[self.test_pool], dtype=np.int64)

    def sentence(self, scheme: Scheme, text: str) -> str:
        return f"split {scheme} with {self.clients} clients{self.where}: {text}"


@dataclass(frozen=True)
class Viewer:
    """A client who looks at images of one part; its draws depend on seed, client and image alone."""

    client: int
    clients: int
    seed: int
    part: Part

    def generator(self, purpose: str, index: int) -> np.random.Generator:
        return numpy_generator(self.seed, "split", purpose, self.part, self.client, int(index))

    @property
    def place(self) -> float:
        """0 for the first client, 1 for the last."""
        return self.client / max(self.clients - 1, 1)


@dataclass(frozen=True)
class Scheme(ABC):
    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str] = ""
    example: ClassVar[str]
    owns: ClassVar[bool]

    def __str__(self) -> str:
        values = [(getattr(self, field.name), field.default) for field in fields(self)]
        while values and values[-1][0] == values[-1][1]:
            values.pop()
        return ":".join([self.name, *(_spelled(value) for value, _ in values)])


class Owner(Scheme):
    owns: ClassVar[bool] = True

    @abstractmethod
    def deal(self, request: Request) -> Partition: ...

    def milder(self) -> Iterator[Owner]:
        """The same with a number that asks for less, little by little: what to advise when this one fails."""
        return iter(())

    def client_step(self, images: ImageSet) -> int:
        """Numbers of clients that can work are multiples of this."""
        return 1


class Change(Scheme):
    """What a client's own view does to its training and test images alike. The original arrays stay as they are."""

    owns: ClassVar[bool] = False
    order: ClassVar[int]  # in which changes of a sum are made, however it is written
    pictures: ClassVar[bool] = True  # whether it changes pictures, not only labels
    beyond: ClassVar[bool] = False  # whether it leaves the range of the original values

    def check(self, images: ImageSet, clients: int) -> None:
        """Raise if these images cannot be changed so."""

    def change(self, x: Pixels, index: Index, viewer: Viewer) -> Pixels:
        """Images N,H,W,C with values 0 to 1, and their places in the set."""
        return x

    def labels(self, y: Index, classes: int, viewer: Viewer) -> Index:
        return y

    @abstractmethod
    def told(self, viewer: Viewer, images: ImageSet) -> str:
        """In a word or two, what this client sees."""


SCHEMES: dict[str, type[Scheme]] = {}


S = TypeVar("S", bound=Scheme)
Owning = TypeVar("Owning", bound=Owner)


def register(scheme: type[S]) -> type[S]:
    SCHEMES[scheme.name] = scheme
    return scheme


def required(scheme: type[Scheme]) -> int:
    """How many of its numbers must be given."""
    return sum(field.default is MISSING for field in fields(scheme))


def larger(owner: Owning, field: str) -> Iterator[Owning]:
    """The owner with the next larger round numbers in place of its own."""
    value = getattr(owner, field)
    for power in range(-4, 4):
        for step in (1, 2, 3, 5):
            number = float(f"{step}e{power}")
            if number > value:
                yield replace(owner, **{field: number})


class Unsettled(FedloomError):
    """In a bounded number of draws, none would do."""


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else repr(value).removesuffix(".0")
