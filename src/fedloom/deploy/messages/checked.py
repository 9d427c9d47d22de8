"""Tensors that arrived are written into the buffers only if they are what was agreed on."""

from __future__ import annotations

from torch import Tensor

from fedloom.engine.server.aggregation import flaw
from fedloom.engine.tensor_layout import TensorLayout

Tensors = dict[str, Tensor]


def pack_checked(tensors: Tensors, layout: TensorLayout, row: Tensor, optional: str | None = None) -> str | None:
    """Write tensors into a row if they match its layout; otherwise return what is wrong with them.

    Tensors under the prefix `optional` may be missing; their values in the row stay.
    """
    views = layout.views(row)
    missing = {
        item.name: views[item.name]
        for item in layout.items
        if item.name not in tensors and (item.nbytes == 0 or (optional and item.name.startswith(optional + ".")))
    }
    complete = {**tensors, **missing}
    reason = flaw(layout, complete)
    if reason is None:
        layout.pack(complete, row)
    return reason
