"""Tables in a terminal that is narrower than they are: no number is cut, and no word is broken."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from fedloom.report.personal import print_wide
from fedloom.report.table import plain_table

HEADINGS = ["method", "chosen", "validation", "untuned", "trials", "stopped", "diverged", "rounds", "seconds"]
NUMBERS = ["93.8", "91.0", "16", "11", "0", "441", "114.6"]


def tuned() -> Table:
    table = plain_table("", HEADINGS, text_columns=2)
    table.add_row("fedavg", "lr=0.351", *NUMBERS)
    table.add_row("[bold]dr + fd(beta=?)[/bold]", "lr=2.24, fd.beta=0.9", *NUMBERS)
    return table


def printed(width: int, terminal: bool = True) -> list[str]:
    file = io.StringIO()
    print_wide(Console(file=file, width=width, force_terminal=terminal, color_system=None), tuned())
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 90, 100, 140])
def test_lines_fit_the_terminal_with_all_words_and_numbers(width: int) -> None:
    lines = printed(width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert {*HEADINGS, *NUMBERS, "fedavg", "fd(beta=?)", "lr=2.24,", "fd.beta=0.9"} <= set(words)


def test_a_terminal_that_is_too_narrow_for_the_numbers_still_gets_them_whole() -> None:
    assert {*HEADINGS, *NUMBERS} <= set(" ".join(printed(60)).split())


def test_a_row_stays_one_line_in_a_pipe() -> None:
    assert any("dr + fd(beta=?)" in line and "114.6" in line for line in printed(80, terminal=False))
