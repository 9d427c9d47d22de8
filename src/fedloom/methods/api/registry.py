"""The names of all parts, and aliases: the names that papers give to a part or a sum."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fedloom.errors import FedloomError
from fedloom.io.user_code import same_origin

PARTS: dict[str, Any] = {}  # name -> class of the part
ALIASES: dict[str, Alias] = {}


@dataclass(frozen=True)
class Alias:
    """A paper's name for a sum. Summary and paper default to those of the first part."""

    name: str
    sum: str
    summary: str
    paper: str


def register(part: Any) -> None:
    """Register a part by its name. A second class of the same name must come from the same module and replaces the first."""
    if not re.fullmatch(r"[a-z_][a-z0-9_-]*", part.name):
        raise FedloomError(
            f"a part is called {part.name!r}; its name must be one that recipes can write: a lower-case letter, "
            f"then lower-case letters, digits, _ and -"
        )
    if part.name in ALIASES:
        known = ALIASES[part.name]
        raise FedloomError(f"{part.name!r} is known already, as {known.sum or known.summary}; choose another name")
    other = PARTS.get(part.name)
    if other and not (same_origin(other, part) and other.__qualname__ == part.__qualname__):
        raise FedloomError(
            f"two parts are called {part.name!r}: {other.__module__} has it already; choose another name"
        )
    PARTS[part.name] = part


def alias(name: str, sum: str, summary: str = "", paper: str = "") -> None:
    ALIASES[name] = Alias(name, sum, summary, paper)


alias("fedavg", "", "the empty sum: local SGD, then the weighted mean", "McMahan et al. 2017")
