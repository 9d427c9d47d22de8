"""How samples are cut into batches."""

from __future__ import annotations

from collections.abc import Iterator


def cut(total: int, size: int, alone: bool) -> Iterator[slice]:
    """Slices of `size` samples; the last one may be shorter. Unless a batch may be one sample `alone`, a last single sample
    joins the batch before it: batch normalization cannot normalize one sample.
    """
    begin = 0
    while begin < total:
        end = min(begin + size, total)
        if total - end == 1 and not alone:
            end = total
        yield slice(begin, end)
        begin = end


def batches(total: int, size: int, alone: bool) -> int:
    """The number of slices that `cut` makes."""
    count = -(-total // size) if total else 0
    lone = count > 1 and total - (count - 1) * size == 1
    return count - (lone and not alone)
