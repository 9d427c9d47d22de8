"""Options of a source: PATH?name=value&name=value."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl

from fedloom.errors import FedloomError, shown


def read_options(prefix: str, text: str, allowed: Sequence[str]) -> tuple[str, dict[str, str]]:
    """What precedes the question mark, and the options behind it."""
    name, _, query = text.partition("?")
    options: dict[str, str] = {}
    for option, value in parse_qsl(query, keep_blank_values=True):
        if option not in allowed or not value:
            raise FedloomError(
                f"data {shown(prefix + text)}: the option {option}={value} is not understood; "
                f"allowed are {', '.join(allowed)}"
            )
        if option in options:
            raise FedloomError(f"data {shown(prefix + text)}: the option {option} is given twice")
        options[option] = value
    return name, options
