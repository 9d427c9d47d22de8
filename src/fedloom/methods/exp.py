"""FedExP (Jhunjhunwala et al., ICLR 2023): the server extrapolates along the average update.

    D_i = w_i - w_g,   D = sum_i p_i D_i
    eta_g = max(1, sum_i p_i ||D_i||^2 / (2 (||D||^2 + eps))),   w <- w_g + eta_g D

What is handed out is the mean of the last two iterates. Statistics of normalisers are plainly averaged. Default eps =
0.001 as the paper's CIFAR runs; its code also scales eps by |S| and decays it, which the equation does not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedloom.methods.method import alias
from fedloom.methods.part import Part, Positive
from fedloom.methods.seen import Memory, Server, Task


class Exp(Part):
    """Server step extrapolated along the average update."""

    paper = "Jhunjhunwala et al. 2023, FedExP"
    eps: Positive = 0.001

    def server_memory(self, w: Tensor, task: Task) -> Memory:
        return {"previous": w.clone()}

    def combine(self, server: Server) -> Tensor:
        w = server.weights
        moves = [w_i - w for w_i in server.uploads]
        mean = server.mean(moves)
        spread = sum(p * _square(move) for p, move in zip(server.shares, moves, strict=True))
        rate = torch.clamp(torch.as_tensor(spread) / (2 * (_square(mean) + self.eps)), min=1.0)
        server.memory["previous"] = w
        return w + rate.to(w.dtype) * mean

    def served(self, weights: Tensor, memory: Mapping[str, Tensor]) -> Tensor:
        return (weights + memory["previous"]) / 2


def _square(vector: Tensor) -> Tensor:
    """Squared norm, summed in double precision: millions of small terms."""
    return vector.double().square().sum()


alias("fedexp", "exp", "FedAvg with an extrapolated server step", "Jhunjhunwala et al. 2023, FedExP")
