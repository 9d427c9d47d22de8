"""Where batches begin and end."""

from __future__ import annotations

from collections.abc import Iterator


def cut(total: int, size: int, alone: bool) -> Iterator[slice]:
    """Stretches of `size` samples, the last one shorter. Unless a sample may stand `alone`, a last one joins those before
    it: batch normalisation has no deviation to take over a single sample.
    """
    begin = 0
    while begin < total:
        end = min(begin + size, total)
        if total - end == 1 and not alone:
            end = total
        yield slice(begin, end)
        begin = end


def batches(total: int, size: int, alone: bool) -> int:
    """How many stretches `cut` makes."""
    count = -(-total // size) if total else 0
    lone = count > 1 and total - (count - 1) * size == 1
    return count - (lone and not alone)
