"""FedExP (Jhunjhunwala et al., ICLR 2023): the server extrapolates along the average update.

    D_i = w_i - w_g,   D = sum_i p_i D_i
    eta_g = max(1, sum_i p_i ||D_i||^2 / (2 (||D||^2 + eps))),   w <- w_g + eta_g D

The served weights are the mean of the last two iterates. Statistics of normalizers are averaged. Default eps = 0.001,
as in the paper's CIFAR runs; its code also scales eps by |S| and decays it, which the equation does not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedloom.methods.api.context import ServerContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import Positive
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias


class Exp(Part):
    """The server extrapolates along the average update."""

    paper = "Jhunjhunwala et al. 2023, FedExP"
    eps: Positive = 0.001
    """keeps the step finite where updates cancel"""

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"previous": weights.clone()}

    def aggregate(self, server: ServerContext) -> Tensor:
        w = server.weights
        moves = [w_i - w for w_i in server.uploads]
        mean = server.mean(moves)
        squares = sum(p * _square(move) for p, move in zip(server.shares, moves, strict=True))
        rate = torch.clamp(torch.as_tensor(squares) / (2 * (_square(mean) + self.eps)), min=1.0)
        server.state["previous"] = w
        return w + rate.to(w.dtype) * mean

    def server_step(self, aggregate: Tensor, server: ServerContext) -> Tensor:
        """`aggregate` has taken the server's step already; defining this hook keeps another part from taking a second one."""
        return aggregate

    def served_weights(self, weights: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        return (weights + state["previous"]) / 2


def _square(vector: Tensor) -> Tensor:
    """Squared norm, summed in double precision: millions of small terms."""
    return vector.double().square().sum()


alias("fedexp", "exp")
