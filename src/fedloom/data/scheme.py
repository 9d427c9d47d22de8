"""A term of a split, such as `shards:2` or `noise:0.1`: a frozen dataclass whose fields are its numbers.

Partitioners (`partition/`) decide which client holds which samples; shifts (`shifts/`) decide what each client sees. A new
term is one new file there, or in a module of your own that a recipe names under `parts`.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, TypeVar

from fedloom.errors import FedloomError
from fedloom.io.user_code import same_origin


@dataclass(frozen=True)
class Scheme(ABC):
    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str] = ""
    example: ClassVar[str]
    group: ClassVar[str]  # the heading in `fedloom list splits`

    def __str__(self) -> str:
        values = [(getattr(self, field.name), field.default) for field in fields(self)]
        while values and values[-1][0] == values[-1][1]:
            values.pop()
        return ":".join([self.name, *(_spelled(value) for value, _ in values)])


SCHEMES: dict[str, type[Scheme]] = {}
S = TypeVar("S", bound=Scheme)


def register(scheme: type[S]) -> type[S]:
    """Make a term known by its name. An edited version of the same file replaces it."""
    known = SCHEMES.get(scheme.name)
    if known is not None and not same_origin(known, scheme):
        raise FedloomError(
            f"two split terms are called {scheme.name!r}: {known.__module__} has it already; choose another name"
        )
    SCHEMES[scheme.name] = scheme
    return scheme


def required(scheme: type[Scheme]) -> int:
    """Number of its fields without a default."""
    return sum(field.default is MISSING for field in fields(scheme))


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else repr(value).removesuffix(".0")
