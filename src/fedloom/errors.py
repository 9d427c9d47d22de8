"""The errors that fedloom raises on purpose: one-line messages for users. Also how messages repeat user input."""

from __future__ import annotations

import errno
import re
import reprlib
from pathlib import Path
from typing import Any

# errors of the disk, not of the input
DISK = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS))
LINE = 80  # maximum characters of a repeated input
WORD = 300  # maximum length of a word in a message: a path fits
SENTENCE = 1500  # maximum length of a message
# control characters, line and paragraph separators, changes of writing direction, lone surrogates
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class FedloomError(ValueError):
    """An error that the user can fix; the message names the field, the value and what is allowed.

    >>> fl.run(lr=-1)
    Traceback (most recent call last):
    fedloom.errors.FedloomError: lr: must be greater than 0 (got -1)
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(str(message)))


class Interrupted(FedloomError):
    """The run was interrupted; its folder can be resumed."""


class TooFew(FedloomError):
    """A round got fewer uploads than the recipe allows; nothing was aggregated, and the run can be resumed."""


class Diverged(FedloomError):
    """Training has diverged: weights are not finite, or too large to compute with."""


class AllDiverged(TooFew, Diverged):
    """Training has diverged at every client of a round."""


class CodeFailed(FedloomError):
    """Code in a worker, such as a user's part or net, raised an exception; the message includes its traceback."""

    def __init__(self, message: str, trace: str) -> None:
        ValueError.__init__(self, f"{one_line(message)}\n{trace.rstrip()}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(str(self).split("\n", 1))


class Unwritable(FedloomError):
    """A disk is full or broken. Files written before are complete, and the run can be resumed."""


def shown(value: Any, most: int = LINE) -> str:
    """The repr of an input for an error message: on one line, a text in quotes, shortened in the middle to `most`.

    Nested values are shortened while they are formatted, so a small file that expands to a huge value costs nothing.
    """
    if isinstance(value, str):
        return repr(_shortened(value, most))
    if isinstance(value, Path):
        return _shortened(_printable(str(value)), WORD)
    short = reprlib.Repr()
    short.maxlevel, short.maxlong, short.maxother = 3, most, most
    try:
        return _shortened(short.repr(value), most)
    except (ValueError, RecursionError):  # an integer too long for Python to format
        return f"a value of type {type(value).__name__}"


def brief(value: object, most: int = LINE) -> str:
    """Like `shown`, but a text has no quotes: for names, paths and the messages of other errors."""
    return _shortened(_printable(value), most) if isinstance(value, str) else shown(value, most)


def cleaned(text: str, most: int) -> str:
    """Text of another machine for a log or a terminal: without control characters, cut at this length."""
    text = CONTROL.sub("\N{REPLACEMENT CHARACTER}", text[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"


def one_line(text: str) -> str:
    """A message that is safe for terminals and logs: one line, printable characters, limited length."""
    words = (_shortened(_printable(word), WORD) for word in text[: 100 * SENTENCE].split(" "))
    return _shortened(" ".join(words), SENTENCE)


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else ascii(char)[1:-1] for char in text)


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end - 1]}…{text[-end:]}"
