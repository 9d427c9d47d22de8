"""Whether the data of a published cell are at hand, can be downloaded, or must be brought."""

from __future__ import annotations

from enum import Enum
from functools import cache
from pathlib import Path

from fedloom.data import list_sets
from fedloom.papers.schema import Protocol


class Availability(Enum):
    HERE = "offline"
    DOWNLOAD = "download"
    MISSING = "missing"


def availability(name: str) -> Availability:
    """Of a data set as recipes name it."""
    if ":" in name:
        path = Path(name.partition(":")[2])
        return Availability.DOWNLOAD if name.startswith("hf:") else _file(path)
    if name.endswith(".npz") or "/" in name:
        return _file(Path(name))
    return _named().get(name, Availability.MISSING)


def how_to_get(name: str, protocol: Protocol | None) -> str:
    """A sentence for someone who lacks a data set."""
    if ":" in name or "/" in name or name.endswith(".npz"):
        return "there is no such file or folder"
    text = f"put it at $FEDLOOM_DATA/{name}.npz, or name your own with --set data.name=PATH.npz"
    return f"{text}; {protocol.where_to_get}" if protocol is not None and protocol.where_to_get else text


def _file(path: Path) -> Availability:
    return Availability.HERE if path.exists() else Availability.MISSING


@cache
def _named() -> dict[str, Availability]:
    return {
        row["name"]: Availability.HERE if not row["file"] or Path(row["file"]).is_file() else Availability.DOWNLOAD
        for row in list_sets()
    }
