"""Digest of named tensors: identifies the result of a run, and is the checksum of a tensor file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Hash of names, dtypes, shapes and values; independent of the order of the tensors."""
    state = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        state.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        state.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return state.hexdigest()
