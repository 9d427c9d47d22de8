"""An unknown name, answered with the nearest known ones."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from fedloom.errors import LINE, shown

MOST = 12  # names that are listed


def nearest(what: str, name: str, known: Iterable[str]) -> str:
    """`paper 'fedbab' is unknown; did you mean fedbabu? Known are …`"""
    names = list(dict.fromkeys(known))
    lowered = {other.lower(): other for other in names}
    near = [lowered[match] for match in get_close_matches(name.strip().lower()[:LINE], lowered, n=3)]
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    listed = ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")
    return f"{what} {shown(name)} is unknown{hint} Known are {listed}"
