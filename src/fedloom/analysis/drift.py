"""Client drift: how much the updates of one round disagree.

D_i = w_i - w is a client's update of the shared weights (without the normalizers' statistics), s_i its share in the average,
D = sum s_i D_i the mean update:

    norm ||D_i||    mean_norm ||D||    to_mean ||D_i - D||    cosine_to_mean cos(D_i, D)    cosine_pairwise cos(D_i, D_j), i < j

The cosines of a zero update are NaN and left out of means. No images are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.analysis.numbers import mean

CHUNK = 1 << 16  # weights per step in double precision, to bound memory


@dataclass(frozen=True)
class Drift:
    norm: npt.NDArray[np.float64]  # (K,)
    mean_norm: float
    to_mean: npt.NDArray[np.float64]  # (K,)
    cosine_to_mean: npt.NDArray[np.float64]  # (K,)
    cosine: npt.NDArray[np.float64]  # (K, K)
    distance: npt.NDArray[np.float64]  # (K, K)

    def means(self) -> dict[str, float]:
        above = np.triu_indices(len(self.norm), 1)
        return {
            "norm": mean(self.norm),
            "mean_norm": self.mean_norm,
            "to_mean": mean(self.to_mean),
            "cosine_to_mean": mean(self.cosine_to_mean),
            "cosine_pairwise": mean(self.cosine[above]),
        }


def drift(start: Tensor, ends: Sequence[Tensor], shares: Sequence[float]) -> Drift:
    """Everything follows from the matrix of inner products, so the updates are not copied as a whole."""
    count = len(ends)
    gram = torch.zeros(count, count, dtype=torch.float64)
    for begin in range(0, start.numel() if count else 0, CHUNK):
        piece = slice(begin, begin + CHUNK)
        updates = torch.stack([end[piece] for end in ends]).double() - start[piece].double()
        gram += updates @ updates.T
    g, s = gram.numpy(), np.asarray(shares, dtype=np.float64)
    defined = start.numel() > 0 and count > 0
    square = np.diagonal(g).copy()
    with_mean, mean_square = g @ s, float(s @ g @ s)
    norm, mean_norm = np.sqrt(square), float(np.sqrt(max(mean_square, 0.0)))
    to_mean = np.sqrt(np.clip(square - 2 * with_mean + mean_square, 0, None))
    distance = np.sqrt(np.clip(square[:, None] + square[None] - 2 * g, 0, None))
    return Drift(
        norm=norm if defined else np.full(count, np.nan),
        mean_norm=mean_norm if defined else float("nan"),
        to_mean=to_mean if defined else np.full(count, np.nan),
        cosine_to_mean=_cosine(with_mean, norm * mean_norm),
        cosine=_cosine(g, norm[:, None] * norm[None]),
        distance=distance if defined else np.full((count, count), np.nan),
    )


def _cosine(product: npt.NDArray[np.float64], lengths: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    divisor = np.where(lengths > 0, lengths, np.nan)
    return np.asarray(np.clip(product / divisor, -1, 1), dtype=np.float64)
