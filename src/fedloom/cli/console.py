"""Where commands print: results to stdout, everything else to stderr.

With --quiet or --json nothing is printed but errors and the outcome: `silenced` turns both consoles off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console

out = Console(emoji=False)  # `:A:` in a table is an argument
err = Console(stderr=True, emoji=False)


def line(text: str) -> None:
    """One line of plain text, never wrapped or colored."""
    out.print(text, highlight=False, markup=False, soft_wrap=True)


def note(text: str) -> None:
    err.print(text, highlight=False, markup=False, soft_wrap=True)


def error(text: str) -> None:
    """Printed also where everything else is silenced."""
    Console(stderr=True, emoji=False).print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def silenced(silent: bool = True) -> Iterator[None]:
    before = out.quiet, err.quiet
    out.quiet, err.quiet = out.quiet or silent, err.quiet or silent
    try:
        yield
    finally:
        out.quiet, err.quiet = before


def lines(texts: Iterable[str]) -> None:
    """Lines of plain text; headings, which end in a colon, are bold in a terminal."""
    for text in texts:
        heading = text.endswith(":") and not text.startswith(" ")
        out.print(text, highlight=False, markup=False, soft_wrap=True, style="bold" if heading else None)


def width() -> int | None:
    """Columns of the terminal, at most 120; None where the output is no terminal, and lines should not be wrapped."""
    return min(out.width, 120) if out.is_terminal else None
