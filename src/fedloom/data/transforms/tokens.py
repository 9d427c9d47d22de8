"""Tokens: stored as int32, given to nets as int64. There is nothing to normalize."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.data.transforms.pipeline import Pipeline


@dataclass(frozen=True)
class TokenPipeline(Pipeline):
    def __call__(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        return x.long()
