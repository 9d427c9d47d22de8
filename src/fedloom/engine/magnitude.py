"""Norms of tensors, and whether they are too large to compute with."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 1 << 16  # floats: a difference stays in the cache
LARGEST = 1e18  # of any norm: its square, and sums of a few squares, still fit into float32


def norm(tensor: Tensor, base: Tensor | None = None) -> float:
    """The L2 norm of a tensor, or of its difference from `base`; not finite if it overflows float32."""
    flat = tensor.reshape(-1)
    if base is None:
        return float(torch.linalg.vector_norm(flat))
    other = base.reshape(-1)
    room = flat.new_empty(min(flat.numel(), CHUNK), dtype=torch.result_type(flat, other))
    pieces = []
    for begin in range(0, flat.numel(), CHUNK):
        piece = flat[begin : begin + CHUNK]
        difference = torch.sub(piece, other[begin : begin + CHUNK], out=room[: len(piece)])
        pieces.append(torch.linalg.vector_norm(difference))
    return float(torch.linalg.vector_norm(torch.stack(pieces))) if pieces else 0.0


def too_large(tensor: Tensor) -> bool:
    """Whether a tensor is not finite, or about to overflow."""
    return tensor.is_floating_point() and tensor.numel() > 0 and not norm(tensor) < LARGEST
