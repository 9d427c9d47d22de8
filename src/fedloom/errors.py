"""The one family of errors that fedloom raises on purpose: a sentence for a person, never a stack trace."""

from __future__ import annotations

import errno
import reprlib
from pathlib import Path
from typing import Any

DISK = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS))  # a disk's fault, not the input's
LINE = 80  # characters of an input that a sentence repeats
WORD = 300  # longest word of a sentence: a path fits
SENTENCE = 1500


class FedloomError(ValueError):
    """Something the user can put right; the message names the field, the value and what is allowed."""

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(str(message)))


class Interrupted(FedloomError):
    """The run was asked to stop; its folder can be resumed."""


class TooFew(FedloomError):
    """A round got fewer uploads than the recipe allows; nothing was combined, and the folder can be resumed."""


class CodeFailed(FedloomError):
    """Code in a worker raised something, such as a part or a net of the user's own; the trace belongs to the message."""

    def __init__(self, message: str, trace: str) -> None:
        ValueError.__init__(self, f"{one_line(message)}\n{trace.rstrip()}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(str(self).split("\n", 1))


class Unwritable(FedloomError):
    """A disk is full or broken: not a fault of the input. What was written before is whole, and a run can be resumed."""


def shown(value: Any, most: int = LINE) -> str:
    """An input as a sentence repeats it: a text in quotes, on one line, its middle left out where it is long.

    Nested values are cut while they are spelled, so that a small file that unfolds to a huge value costs nothing.
    """
    if isinstance(value, str):
        return repr(_shortened(value, most))
    if isinstance(value, Path):
        return _shortened(_printable(str(value)), WORD)
    short = reprlib.Repr()
    short.maxlevel, short.maxlong, short.maxother = 3, most, most
    try:
        return _shortened(short.repr(value), most)
    except (ValueError, RecursionError):  # a number too long for Python to spell
        return f"a value of type {type(value).__name__}"


def brief(value: object, most: int = LINE) -> str:
    """The same without quotes."""
    return _shortened(_printable(value), most) if isinstance(value, str) else shown(value, most)


def one_line(text: str) -> str:
    """A sentence that any terminal and any log can hold: one line, nothing unprintable, no endless words."""
    words = (_shortened(_printable(word), WORD) for word in text[: 100 * SENTENCE].split(" "))
    return _shortened(" ".join(words), SENTENCE)


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else " " if sign.isspace() else ascii(sign)[1:-1] for sign in text)


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end - 1]}…{text[-end:]}"
