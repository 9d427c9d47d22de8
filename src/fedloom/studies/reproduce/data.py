"""Whether the data of a published cell are at hand, can be downloaded, or must be brought."""

from __future__ import annotations

from enum import Enum
from functools import cache
from pathlib import Path

from fedloom.data import list_sets
from fedloom.extras import install
from fedloom.papers import is_place
from fedloom.papers.schema import Protocol


class Availability(Enum):
    HERE = "offline"
    DOWNLOAD = "download"
    MISSING = "missing"


def availability(name: str) -> Availability:
    """Of a data set as recipes name it."""
    if not is_place(name):
        return _named().get(name, Availability.MISSING)
    prefix, colon, rest = name.partition(":")
    path = Path((rest if colon else name).partition("?")[0]).expanduser()
    if path.exists():
        return Availability.HERE
    return Availability.DOWNLOAD if prefix == "hf" else Availability.MISSING


def how_to_get(name: str, protocol: Protocol | None) -> str:
    """A sentence for someone who lacks a data set."""
    if is_place(name):
        return "there is no such file or folder"
    text = f"put it at $FEDLOOM_DATA/{name}.npz, or "
    if protocol is not None and protocol.where_to_get:
        return f"{text}get it elsewhere: {protocol.where_to_get}"
    if (origin := _places().get(name, "")).startswith("hf:"):
        return f"{text}let a run download it from {origin} (needs {install('hub')})"
    return f"{text}name your own with --set data.name=PATH.npz, folder:PATH or hf:owner/name"


@cache
def _places() -> dict[str, str]:
    """Where sets with a plain name are: a file, hf:owner/name, or nothing for those that are bundled."""
    return {row["name"]: row["file"] for row in list_sets()}


@cache
def _named() -> dict[str, Availability]:
    return {
        name: Availability.HERE if not place or Path(place).is_file() else Availability.DOWNLOAD
        for name, place in _places().items()
    }
