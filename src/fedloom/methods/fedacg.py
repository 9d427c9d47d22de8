"""FedACG (Kim et al., CVPR 2024): clients start from where the server's momentum leads.

    sent:    w_g + lambda m
    client:  L + beta ||w - (w_g + lambda m)||^2
    server:  m <- lambda m + mean over S of (w_i - sent),   w_g <- w_g + m = mean over S of w_i

Nothing but the weights is sent. The model that is evaluated is w_g, not the point that is sent. The penalty has no factor 1/2,
as in the authors' code (the paper prints beta/2). lambda = beta = 0 is FedAvg; round 1 is FedProx with mu = 2 beta. m and the
penalty cover the shared weights (the body in `fedacg + babu`); statistics of normalizers are averaged and have no momentum.
The mean may be another part's aggregate (`krum + fedacg`). Defaults lambda = 0.85, beta = 0.001 (authors' code).

In the engine the training state is what is sent, so what other parts call the global weights (a teacher's, a proximal
center's) is the sent point; w_g = sent - lambda m is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedloom.methods.api.context import ClientContext, ServerContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import NonNegative
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span


class FedACG(Part):
    """Clients start from where the server's momentum leads, and are held near it."""

    paper = "Kim et al. 2024, FedACG"
    work = "one to three vector operations per step"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "lambda": Span(0.4, 0.95, source="around the authors' 0.85"),
        "beta": Span(0.0001, 0.1, log=True, source="around the authors' 0.001"),
    }
    sums = "shares"
    momentum: Annotated[float, Field(ge=0, lt=1, alias="lambda")] = 0.85
    """momentum of the server"""
    beta: NonNegative = 0.001
    """pull of clients to the point that was sent"""

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"momentum": torch.zeros_like(weights)}

    def correct_gradient(self, gradient: Tensor, client: ClientContext) -> None:
        gradient.add_(client.weights - client.global_weights, alpha=2 * self.beta)

    def server_step(self, aggregate: Tensor, server: ServerContext) -> Tensor:
        momentum = server.state["momentum"]
        momentum.mul_(self.momentum).add_(aggregate - server.weights)
        return aggregate + self.momentum * momentum

    def served_weights(self, weights: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        return weights - self.momentum * state["momentum"]
