"""Tensors that arrived, put to use only if they are what was agreed on."""

from __future__ import annotations

from torch import Tensor

from fedloom.engine.arena import Packing
from fedloom.engine.server import flaw

Tensors = dict[str, Tensor]


def fit(tensors: Tensors, packing: Packing, row: Tensor, but: str | None = None) -> str | None:
    """Put tensors into a row of a packing if they are what it declares; else what is wrong with them.

    `but`: tensors under this prefix may be missing; the row has them already.
    """
    here = packing.views(row)
    absent = {
        item.name: here[item.name]
        for item in packing.items
        if item.name not in tensors and (item.nbytes == 0 or (but and item.name.startswith(but + ".")))
    }
    whole = {**tensors, **absent}
    reason = flaw(packing, whole)
    if reason is None:
        packing.pack(whole, row)
    return reason
