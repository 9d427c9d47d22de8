"""What a split scheme is, and the grammar: name or name:number, joined by +.

A scheme is a frozen dataclass with at most one field, its number, checked when it is made. It registers itself; a
new one is a new file in this folder and nothing else.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import ClassVar

import numpy as np

from fedloom.data.splits.partition import Index, Partition
from fedloom.errors import FedloomError
from fedloom.keys import numpy_generator

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, eq=False)
class Request:
    """What a scheme deals out: images by their label, to so many clients; of the training images only the pool."""

    train_y: Index
    test_y: Index
    classes: int
    clients: int
    seed: int
    pool: Index  # sorted

    def generator(self, *purpose: str) -> np.random.Generator:
        return numpy_generator(self.seed, "split", *purpose)


@dataclass(frozen=True)
class Scheme(ABC):
    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str] = ""
    example: ClassVar[str]
    owns: ClassVar[bool] = True  # decides who holds what; of these a split has one

    @abstractmethod
    def deal(self, request: Request) -> Partition: ...

    def __str__(self) -> str:
        return ":".join([self.name, *(repr(getattr(self, field.name)).removesuffix(".0") for field in fields(self))])


SCHEMES: dict[str, type[Scheme]] = {}


def register(scheme: type[Scheme]) -> type[Scheme]:
    SCHEMES[scheme.name] = scheme
    return scheme


def parse(spec: str) -> tuple[Scheme, ...]:
    """The schemes of a text such as dirichlet:0.5, or a sentence about what is wrong with it."""
    schemes = tuple(_term(spec, term.strip()) for term in re.split(r"\+(?!\d)", spec))  # 1e+3 is one number
    owners = [scheme.name for scheme in schemes if scheme.owns]
    if len(owners) > 1:
        raise FedloomError(f"split {spec!r}: {owners[0]} and {owners[1]} both decide who holds what; keep one")
    return schemes


def _term(spec: str, term: str) -> Scheme:
    name, colon, text = (piece.strip() for piece in term.partition(":"))
    if name not in SCHEMES:
        near = get_close_matches(name, SCHEMES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise FedloomError(
            f"split {spec!r}: there is no scheme {name!r}; {hint}allowed are {', '.join(sorted(SCHEMES))}"
        )
    scheme = SCHEMES[name]
    wanted = fields(scheme)
    if not wanted:
        if colon:
            raise FedloomError(f"split {spec!r}: {name} takes no number; write {scheme.example}")
        return scheme()
    whole = wanted[0].type in (int, "int")
    if not NUMBER.fullmatch(text) or (whole and not text.isdecimal()):
        raise FedloomError(f"split {spec!r}: {name} needs a {'whole ' if whole else ''}number; write {scheme.example}")
    return scheme(**{wanted[0].name: int(text) if whole else float(text)})
