"""What descriptions of several kinds need: the entry of a name, and the text of its file."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

from fedloom.errors import FedloomError
from fedloom.nearest import nearest


def chosen(what: str, name: str, rows: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The row of this name; unknown names are answered with the nearest."""
    by_name = {str(row["name"]): row for row in rows}
    if name not in by_name:
        raise FedloomError(f"list: {nearest(what, name, by_name, kind)}")
    return by_name[name]


def docstring(item: Any) -> str:
    """Of the file that has it."""
    return inspect.cleandoc(sys.modules[item.__module__].__doc__ or item.__doc__ or "")
