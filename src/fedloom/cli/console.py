"""Where commands print: results to stdout, everything else to stderr."""

from __future__ import annotations

from rich.console import Console

out = Console(emoji=False)  # `:A:` in a table is an argument
err = Console(stderr=True, emoji=False)


def line(text: str) -> None:
    """One line of plain text, never wrapped or colored."""
    out.print(text, highlight=False, markup=False, soft_wrap=True)


def note(text: str) -> None:
    err.print(text, highlight=False, markup=False, soft_wrap=True)
