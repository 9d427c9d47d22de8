"""Which stretches of the board a job reads and which it writes.

Lanes that share the board need no such thing. For a lane that has a board of its own, in another process or on another
machine, this says what must travel to it with a job and what must come back. Both sides work it out from the order, so
that nothing but bytes goes over the line. What is broadcast is the same for all jobs and is not listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fedloom.engine.board import Board

Region = tuple[Any, ...]  # a name, then its place: ("up", 3), ("hits", "test", 0, 1000), ("message",)
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Touched:
    reads: Sequence[Region] = ()
    writes: Sequence[Region] = ()


Touches = Callable[[Mapping[str, Any], Sequence[int], int], Touched]  # arguments, rows of the job, number of the lane


def _each(names: Sequence[str], rows: Sequence[int]) -> list[Region]:
    return [(name, row) for row in rows for name in names]


def _train(a: Mapping[str, Any], rows: Sequence[int], lane: int) -> Touched:
    own = _each(("up", "memory"), rows)
    return Touched(own, own)


def _act(a: Mapping[str, Any], rows: Sequence[int], lane: int) -> Touched:
    own = _each(("up", "memory"), rows)
    return Touched([*own, ("message",)], own)


def _refine(a: Mapping[str, Any], rows: Sequence[int], lane: int) -> Touched:
    peers = [("up", row) for row, _, _ in a["peers"]]
    return Touched([("server",), ("refined",), *peers], [("server",), ("refined",)])


def _tell(a: Mapping[str, Any], rows: Sequence[int], lane: int) -> Touched:
    return Touched(_each(("memory", "findings"), rows), _each(("findings",), rows))


def _test(a: Mapping[str, Any], rows: Sequence[int], lane: int) -> Touched:
    return Touched((), [("hits", a["set"], a["begin"], a["end"])])


def _own(a: Mapping[str, Any], rows: Sequence[int], lane: int) -> Touched:
    return Touched(_each(("memory",), rows))


def _anything(a: Mapping[str, Any], rows: Sequence[int], lane: int) -> Touched:
    """Of a kind that nobody has described: all that belongs to its rows and its lane."""
    own = _each(("up", "memory", "findings"), rows)
    return Touched([*own, ("before", lane), ("message",), ("server",)], own)


# Kinds of jobs that modules outside the engine bring (lanes.KINDS) may be described here by them.
TOUCHES: dict[str, Touches] = {
    "train": _train,
    "stack": _train,  # some clients at once
    "act": _act,
    "refine": _refine,
    "tell": _tell,
    "test": _test,
    "client": _own,
    "tune": _own,
}


def touched(kind: str, arguments: Mapping[str, Any], lane: int) -> Touched:
    rows = arguments.get("rows") or [arguments.get("row", lane)]
    return TOUCHES.get(kind, _anything)(arguments, rows, lane)


def place(board: Board, region: Region) -> Bytes:
    """The bytes of a region, to be read or written."""
    name, *where = region
    if name == "hits":
        which, begin, end = where
        found = board.hits_of[which][begin:end]
    elif where:
        rows: dict[str, Tensor] = {
            "up": board.up_rows,
            "memory": board.memory_rows,
            "before": board.before_rows,
            "findings": board.finding_rows,
        }
        found = rows[name][where[0]]
    else:
        found = {"message": board.message_row, "server": board.server_row, "refined": board.refined_row}[name]
    seen: Bytes = found.numpy().view(np.uint8)
    return seen


def read(board: Board, regions: Sequence[Region]) -> list[Bytes]:
    return [place(board, region) for region in regions]


def write(board: Board, regions: Sequence[Region], values: Sequence[Bytes]) -> None:
    for region, value in zip(regions, values, strict=True):
        np.copyto(place(board, region), value)
