"""The kinds of names that recipes use. Each is a file of this folder with `entries()` and `describe(name)`; only the one that
is asked for is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from fedloom.report.catalog.entry import Description, Entry


@dataclass(frozen=True)
class Kind:
    entries: Callable[[], list[Entry]]
    describe: Callable[[str], Description]


def kind(name: str) -> Kind:
    """By the name of its file."""
    module = import_module(f"fedloom.report.catalog.{name}")
    return Kind(module.entries, module.describe)
