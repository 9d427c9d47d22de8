"""Lists and descriptions as lines of text, for a terminal of some width, or unwrapped where nobody looks at columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from fedloom.report.catalog.entry import Description, Entry

INDENT = "  "
NAMES = 26  # widest column of names, or a third of the terminal; a longer name has a line of its own


def list_lines(entries: Sequence[Entry], width: int | None) -> Iterator[str]:
    """One entry a line, or some wrapped ones, below the headings of their groups. Entries of a group stand together."""
    column = _column([entry.name for entry in entries], width)
    for number, (group, members) in enumerate(groupby(entries, key=lambda entry: entry.group)):
        if group:
            yield from [""] * (number > 0) + [f"{group}:"]
        for entry in members:
            yield from _pair(entry.name, entry.summary, column, width)


def description_lines(description: Description, width: int | None) -> Iterator[str]:
    yield description.title
    for section in description.sections:
        yield ""
        if isinstance(section.content, str):
            yield f"{section.heading}:"
            yield from _text(section.content, width)
            continue
        yield f"{section.heading}:"
        column = _column([name for name, _ in section.content], width)
        for name, text in section.content:
            yield from _pair(name, text, column, width)


def note_lines(notes: Sequence[str], width: int | None) -> Iterator[str]:
    for note in notes:
        yield from _wrapped(note, "", INDENT, width)


def _column(names: Sequence[str], width: int | None) -> int:
    widest = None if width is None else max(NAMES, width // 3)
    return max((len(name) for name in names if widest is None or len(name) <= widest), default=0)


def _pair(name: str, text: str, column: int, width: int | None) -> Iterator[str]:
    if not name:
        yield from _wrapped(text, INDENT, INDENT, width)
        return
    hanging = INDENT + " " * (column + 2)
    if len(name) > column:
        yield INDENT + name
        yield from _wrapped(text, hanging, hanging, width)
        return
    yield from _wrapped(text, f"{INDENT}{name:<{column}}  ", hanging, width)


def _wrapped(text: str, first: str, rest: str, width: int | None) -> Iterator[str]:
    if width is None:
        yield (first + text).rstrip()
        return
    lines = textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )
    yield from lines or [first.rstrip()]


def _text(text: str, width: int | None) -> Iterator[str]:
    """Paragraphs are wrapped; lines that are indented, such as equations, are kept."""
    for number, paragraph in enumerate(text.strip("\n").split("\n\n")):
        if number:
            yield ""
        plain: list[str] = []
        for line in [*paragraph.split("\n"), None]:
            if line is not None and not line.startswith(" "):
                plain.append(line)
                continue
            if plain:
                yield from _wrapped(" ".join(plain), INDENT, INDENT, width)
                plain = []
            if line is not None:
                yield INDENT + line
