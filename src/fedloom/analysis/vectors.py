"""Lengths, cosines and angles of rows, in double precision. A zero vector has cosine 0 with everything."""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-12


def unit(rows: Tensor) -> Tensor:
    """Rows of length 1; a zero row stays zero."""
    rows = rows.double()
    normalized: Tensor = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=EPS)
    return normalized


def angle(a: Tensor, b: Tensor) -> Tensor:
    """Degrees between rows of two matrices of unit rows.

    2 atan2(||a - b||, ||a + b||) stays precise at small angles, where the arc cosine does not. A zero vector has
    90 degrees to every other vector and 0 to another zero vector.
    """
    return torch.rad2deg(2 * torch.atan2((a - b).norm(dim=1), (a + b).norm(dim=1)))


def class_sums(values: Tensor, y: Tensor, classes: int) -> Tensor:
    """Sums over the rows of each class: (N, ...) -> (C, ...)."""
    values = values.double()
    return values.new_zeros(classes, *values.shape[1:]).index_add_(0, y, values)
