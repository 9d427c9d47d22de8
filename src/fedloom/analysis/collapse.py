"""Dimensional collapse (Shi et al. 2023): how many dimensions the features use.

Singular values s_1 >= ... >= s_d of the features' covariance (1/N) sum (f - mean)(f - mean)^T over test samples; the paper
plots their logarithms. Two summaries: the effective rank (Roy and Vetterli 2007), exp(-sum p_i log p_i) with
p_i = s_i / sum s, which is d if all are equal and 1 if only one is not zero; and the number of values that make up 99 %
of the sum.
"""

from __future__ import annotations

import torch
from torch import Tensor


def spectrum(features: Tensor) -> Tensor:
    """(d,) singular values in descending order; NaN if the features are not finite."""
    f = features.double()
    if not len(f) or not bool(f.isfinite().all()):
        return torch.full((f.shape[1],), torch.nan, dtype=torch.float64)
    f = f - f.mean(0)
    values: Tensor = torch.linalg.eigvalsh(f.T @ f / len(f)).flip(
        0
    )  # of a positive semidefinite matrix: also its singular values
    return values.clamp(min=0)


def effective_rank(values: Tensor) -> float:
    """0 if there is no variance."""
    total = values.sum()
    if not bool(total > 0):
        return 0.0 if bool(total == 0) else float("nan")
    p = values / total
    return float(torch.exp(-torch.xlogy(p, p).sum()))


def rank99(values: Tensor) -> float:
    total = values.sum()
    if not bool(total > 0):
        return 0.0 if bool(total == 0) else float("nan")
    return float((values.cumsum(0) < 0.99 * total).sum() + 1)
