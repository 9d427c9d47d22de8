"""Local work as a recipe states it: a number, or a range A..B from which every client draws in every round."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

MOST = 10**9


def _range(value: Any) -> Any:
    """Refuses everything else than a range, so that a plain number is read as a number."""
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,10}\s*\.\.\s*\d{1,10}\s*", value):
        low, high = span(value)
        if 1 <= low <= high <= MOST:
            return f"{low}..{high}"
    raise ValueError("a range A..B such as 1..5")


Range = Annotated[str, BeforeValidator(_range)]


def span(work: int | str) -> tuple[int, int]:
    """The least and the most of a number or a range."""
    if isinstance(work, int):
        return work, work
    low, _, high = work.partition("..")
    return int(low), int(high)
