"""Features: (x - mean) / std, one mean and deviation for each entry of the first axis (a column, a signal's channel)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedloom.data.transforms.pipeline import Pipeline


@dataclass(frozen=True)
class FeaturePipeline(Pipeline):
    def __call__(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        factor, shift = _line(self.mean, self.std, x.dim())
        return torch.addcmul(shift, x.float(), factor)


@lru_cache(maxsize=32)
def _line(mean: tuple[float, ...], std: tuple[float, ...], dimensions: int) -> tuple[Tensor, Tensor]:
    """(x - mean) / std as factor * x + shift, shaped to broadcast over a batch."""
    deviation = torch.tensor(std, dtype=torch.float64).view(1, -1, *[1] * (dimensions - 2))
    center = torch.tensor(mean, dtype=torch.float64).view(deviation.shape)
    return (1 / deviation).float(), (-center / deviation).float()
