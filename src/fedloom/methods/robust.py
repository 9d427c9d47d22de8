"""Combining that a few bad clients cannot spoil: the median and the trimmed mean of every coordinate (Yin et al.,
ICML 2018), and clipping of every client's update before the average.

    median:   w <- median over S of w_i, coordinate by coordinate (the mean of the two middle values for an even number)
    trimmed:  w <- mean over S of w_i without the `share` smallest and largest values of each coordinate
    clipped:  w <- w_g + sum_i p_i D_i min(1, largest / ||D_i||),   D_i = w_i - w_g

Median and trimmed mean do not weigh clients by their samples: a weight is one more number that a bad client can
choose. Only trained weights are combined like this: running statistics of normalisers are plainly averaged, so against
bad clients use a net without them, or `bn: batch` or `bn: local`. An upload that lies far from the others is not dropped
before (`deploy.max_distance`): what these rules are for is to bound it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedloom.methods.part import Part, Positive
from fedloom.methods.seen import Server

CHUNK = 1 << 18  # coordinates sorted at a time


class Median(Part):
    """Coordinate-wise median of the clients."""

    paper = "Yin et al. 2018"
    bounds: ClassVar[bool] = True

    def combine(self, server: Server) -> Tensor:
        count = len(server.uploads)
        return _trimmed(server, (count - 1) // 2)


class Trimmed(Part):
    """Coordinate-wise mean without the extremes."""

    paper = "Yin et al. 2018"
    bounds: ClassVar[bool] = True
    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.1

    def combine(self, server: Server) -> Tensor:
        count = len(server.uploads)
        cut = int(self.share * count + 1e-9)  # 0.29 * 100 is meant to be 29
        return _trimmed(server, min(cut, (count - 1) // 2))


class Clipped(Part):
    """Every client's update is clipped to a largest norm, then averaged."""

    paper = "Sun et al. 2019"
    bounds: ClassVar[bool] = True
    largest: Positive = 1.0

    def combine(self, server: Server) -> Tensor:
        moves = []
        for w_i in server.uploads:
            move = w_i - server.weights
            norm = torch.linalg.vector_norm(move.double())
            moves.append(move * torch.clamp(self.largest / (norm + 1e-12), max=1.0).to(move.dtype))
        return server.weights + server.mean(moves)


def _trimmed(server: Server, cut: int) -> Tensor:
    """The mean of each coordinate without its `cut` smallest and largest values."""
    new = torch.empty_like(server.weights)
    kept = len(server.uploads) - 2 * cut
    for begin in range(0, len(new), CHUNK):
        rows = torch.stack([w_i[begin : begin + CHUNK] for w_i in server.uploads])
        new[begin : begin + CHUNK] = rows.sort(0).values[cut : cut + kept].mean(0)
    return new
