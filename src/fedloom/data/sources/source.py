"""A source: a name, an identity that is cheap to get and changes with the content, and a reader for the content."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fedloom.data.arrays import Content


@dataclass(frozen=True)
class Source:
    name: str
    where: str  # how sentences about its content begin
    identity: tuple[str, ...]
    read: Callable[[int | None], Content]  # takes the side to resize to, for readers that decode pictures
    scale: float = 255.0


def stamp(paths: Iterable[Path]) -> tuple[str, ...]:
    """Path, size and time of change of each file."""
    seen = []
    for path in paths:
        state = path.stat()
        seen.append(f"{path} {state.st_size} {state.st_mtime_ns}")
    return tuple(seen)
