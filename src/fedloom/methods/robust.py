"""Robust aggregation: coordinate-wise median and trimmed mean (Yin et al., ICML 2018), and clipped updates.

    median:   w <- median over S of w_i, coordinate by coordinate (the mean of the two middle values for an even number)
    trimmed:  w <- mean over S of w_i without the `share` smallest and largest values of each coordinate
    clipped:  w <- w_g + sum_i p_i D_i min(1, largest / ||D_i||),   D_i = w_i - w_g

Median and trimmed mean do not weight clients by their samples: a weight is one more number that a malicious client
can choose. Only trained weights are aggregated like this; running statistics of normalizers are averaged, so against
malicious clients use a net without them, or `bn: batch` or `bn: local`. What other parts let clients send beside weights
(controls, prototypes, Gaussians) does not go through these rules either. Outlying uploads are not dropped before
aggregation (`deploy.max_distance`), since these rules bound their effect.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedloom.methods.api.context import ServerContext
from fedloom.methods.api.hyperparameters import Positive
from fedloom.methods.api.part import Part

CHUNK = 1 << 18  # coordinates sorted at a time


class Median(Part):
    """Coordinate-wise median of the uploads."""

    paper = "Yin et al. 2018"
    unweighted: ClassVar[bool] = True
    bounds: ClassVar[bool] = True

    def aggregate(self, server: ServerContext) -> Tensor:
        return middle(server)


class Trimmed(Part):
    """Coordinate-wise mean without the largest and smallest values."""

    paper = "Yin et al. 2018"
    unweighted: ClassVar[bool] = True
    bounds: ClassVar[bool] = True
    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """share of the values that is cut at each end"""

    def aggregate(self, server: ServerContext) -> Tensor:
        count = len(server.uploads)
        cut = int(self.share * count + 1e-9)  # 0.29 * 100 is meant to be 29
        return _trimmed(server, min(cut, (count - 1) // 2))


class Clipped(Part):
    """Updates are clipped to a maximal norm, then averaged."""

    paper = "Sun et al. 2019"
    bounds: ClassVar[bool] = True
    largest: Positive = 1.0
    """largest norm of an update"""

    def aggregate(self, server: ServerContext) -> Tensor:
        moves = []
        for w_i in server.uploads:
            move = w_i - server.weights
            norm = torch.linalg.vector_norm(move.double())
            moves.append(move * torch.clamp(self.largest / (norm + 1e-12), max=1.0).to(move.dtype))
        return server.weights + server.mean(moves)


def middle(server: ServerContext) -> Tensor:
    """The median of each coordinate."""
    return _trimmed(server, (len(server.uploads) - 1) // 2)


def _trimmed(server: ServerContext, cut: int) -> Tensor:
    """The mean of each coordinate without its `cut` smallest and largest values."""
    new = torch.empty_like(server.weights)
    kept = len(server.uploads) - 2 * cut
    for begin in range(0, len(new), CHUNK):
        rows = torch.stack([w_i[begin : begin + CHUNK] for w_i in server.uploads])
        new[begin : begin + CHUNK] = rows.sort(0).values[cut : cut + kept].mean(0)
    return new
