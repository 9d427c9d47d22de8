"""Errors that name the recipe field that they are about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedloom.errors import FedloomError


@contextmanager
def about(field: str) -> Iterator[None]:
    """Prefix every error of the block with the recipe field."""
    try:
        yield
    except FedloomError as error:
        text = str(error)
        raise type(error)(text if text.startswith((f"{field}:", f"{field} ")) else f"{field}: {text}") from None
