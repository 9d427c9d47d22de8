"""The interface of a transform: from stored samples to the inputs of a net, a batch at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pipeline(ABC):
    """Stored samples become (x / scale - mean) / std, with the statistics of `data.normalize`."""

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str = "none"

    @abstractmethod
    def __call__(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Inputs of a net. With a generator: augmented by its draws. Without: for evaluation."""

    def rows(self, x: Tensor) -> Tensor:
        """The same without augmentation, laid out so that picking samples copies whole rows; see `inputs`."""
        return self(x, None).contiguous()

    def inputs(self, rows: Tensor) -> Tensor:
        """Inputs of a net from some of the rows; further axes may come first."""
        return rows
