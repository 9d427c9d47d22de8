"""FedDyn (Acar et al., ICLR 2021): each client's loss is modified so that its minimum agrees with the global one.

    L = cross-entropy - <lambda_i, w> + (alpha/2) ||w - w_g||^2,   so   g <- g - lambda_i + alpha (w - w_g)
    client:  lambda_i <- lambda_i - alpha (w_i - w_g)
    server:  h <- h - (alpha/N) sum over S of (w_i - w_g),   w_g <- mean over S of w_i - h / alpha

The mean is weighted as the recipe says. The server's w_g ("cloud model" of the authors' code) is broadcast, evaluated
and served. The terms act on the gradient before momentum. Default alpha = 0.01 (FedDC's CIFAR runs, FedNN); FedNTD's
code uses 0.1. With partial participation h drifts without bound; use gradient clipping (`--set clip=10`) as the
authors do. After a query that trains (fnr), lambda_i comes from the client's final upload, which also moves h; the
extra steps use the same lambda_i as the first ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import ClientContext, ServerContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import Positive
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span


class FedDyn(Part):
    """Dynamic regularization aligns local minima with the global one."""

    paper = "Acar et al. 2021, FedDyn"
    work = "one to three vector operations per step"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "alpha": Span(0.001, 0.1, log=True, source="Acar et al. 2021 try 0.001, 0.01 and 0.1")
    }
    sums = "equal"  # for h; the mean is a second sum unless weights are uniform
    alpha: Positive = 0.01
    """strength of the regularization; the server's correction is divided by it"""

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"h": torch.zeros_like(weights)}

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"gradient": torch.zeros_like(weights)}

    def correct_gradient(self, gradient: Tensor, client: ClientContext) -> None:
        gradient.sub_(client.state["gradient"]).add_(client.weights - client.global_weights, alpha=self.alpha)

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # no step on shared weights

    def after_training(self, client: ClientContext) -> None:
        client.state["gradient"] = client.state["gradient"] - self.alpha * (client.weights - client.global_weights)

    def aggregate(self, server: ServerContext) -> Tensor:
        h = server.state["h"]
        for w_i in server.uploads:
            h.sub_(w_i - server.weights, alpha=self.alpha / server.task.clients)
        return server.mean(server.uploads) - h / self.alpha
