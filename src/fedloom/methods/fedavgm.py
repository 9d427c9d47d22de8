"""FedAvgM (Hsu, Qi, Brown, 2019): server momentum.

    D = aggregate - w_g,   v <- beta v + D
    nesterov = false:  w <- w_g + lr v
    nesterov = true:   w <- w_g + lr (D + beta v)

The step is taken from the aggregate of any other part. beta = 0 with lr = 1 is the same sum without fedavgm. v covers the
shared weights; statistics of normalizers are averaged without momentum, which could make a variance negative.

Defaults: beta = 0.9, lr = 1, heavy ball. The authors use Nesterov momentum; ports differ (heavy ball, Nesterov, or an
exponential mean, whose first step is (1 - beta) D), so it is an option. Steps become up to 1 / (1 - beta) times as long: lower
the clients' learning rate with a large beta.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import ServerContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import Positive, Share
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span


class FedAvgM(Part):
    """Server momentum: the server moves along a running sum of past updates."""

    paper = "Hsu et al. 2019, FedAvgM"
    search_ranges: ClassVar[Mapping[str, Range]] = {"beta": Span(0.0, 0.99, source="Hsu et al. 2019 try 0 to 0.997")}
    sums = "shares"
    beta: Share = 0.9
    """momentum of the server; 0 is FedAvg at lr = 1"""
    lr: Positive = 1.0
    """learning rate of the server"""
    nesterov: bool = False
    """Nesterov momentum in place of heavy ball"""

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"velocity": torch.zeros_like(weights)}

    def server_step(self, aggregate: Tensor, server: ServerContext) -> Tensor:
        update, velocity = aggregate - server.weights, server.state["velocity"]
        velocity.mul_(self.beta).add_(update)
        return server.weights + self.lr * (update + self.beta * velocity if self.nesterov else velocity)
