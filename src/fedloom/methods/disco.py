"""FedDisco (Ye et al., ICML 2023): clients whose labels are far from balanced count less in the average.

    p_i ~ max(0, n_i / n_S - a d_i / sum_j d_j + b),   renormalized over S
    d_i = KL(label frequencies of client i || uniform)

n_i / n_S is the recipe's share: by samples, or equal with uniform weighting. The target is uniform even if all data together
are not balanced, as in the authors' code. Where all p_i are zero, which crashes that code, the recipe's shares are used; where
all d_i are zero, nothing is subtracted. The weights apply to whatever is averaged: `disco + scaffold`, `disco + fedavgm`,
running statistics. Rules without weights (median, krum) are refused beside it.

The server learns one number d_i of each client, not its class counts; reported values are limited to [0, log C]. a = b = 0 is
FedAvg, a very large b equal weights. Defaults a = 0.5, b = 0.1 (authors' code).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import ClientContext, ServerContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import NonNegative
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.api.search import Range, Span


class Disco(Part):
    """Uploads are weighted by sample counts and by how balanced their labels are."""

    paper = "Ye et al. 2023, FedDisco"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "a": Span(0.1, 1.0, log=True, source="around the authors' 0.5"),
        "b": Span(0.01, 0.5, log=True, source="around the authors' 0.1"),
    }
    a: NonNegative = 0.5
    """how much an unbalanced client loses; 0 with b = 0 is FedAvg"""
    b: NonNegative = 0.1
    """added to every weight; a large one makes weights equal"""

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"discrepancy": torch.zeros(1)}

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # nothing is trained

    def after_training(self, client: ClientContext) -> None:
        client.upload["discrepancy"] = discrepancy(client.counts).reshape(1)

    def weigh_uploads(self, shares: Sequence[float], server: ServerContext) -> Sequence[float]:
        largest = math.log(server.task.classes)
        values = [min(max(float(value), 0.0), largest) for value in server.extras("discrepancy")]
        scale = self.a / (sum(values) or 1.0)
        return [max(0.0, share - scale * value + self.b) for share, value in zip(shares, values, strict=True)]


def discrepancy(counts: Tensor) -> Tensor:
    """KL(counts / n || uniform), in nats."""
    frequencies = counts.double() / counts.sum().clamp(min=1)
    return (torch.xlogy(frequencies, frequencies).sum() + math.log(len(counts))).clamp(min=0)


alias("feddisco", "disco")
