"""FedDC (Gao et al., CVPR 2022): each client learns its drift, and the server corrects the average by it.

    n~_i = n_i N / n,   alpha_i = alpha / n~_i
    L = cross-entropy + (alpha_i/2) ||w - (w_g - h_i)||^2 + <w, D/n~_i - D_i>
    client:  h_i <- h_i + (w_i - w_g),   D_i' = D_i - D/n~_i + (w_g - w_i) / (K eta)
    server:  D <- D + (1/N) sum over S of n~_i (D_i' - D_i),   w_g <- mean over S of w_i + mean over all N of h_i

The server tracks the mean of all h_i itself, since the change of h_i is the client's update. Departures from the
authors' code, where it departs from their paper: K is the client's own number of steps (with momentum the effective
number, see scaffold) and eta the learning rate of the round. The mean over S is weighted as the recipe says. Default
alpha = 0.01 (CIFAR). h_i grows with every round that a client takes part in. After a query that trains (fnr), h_i and
D_i' come from the client's final upload, and K counts all its steps (see scaffold).
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
from fedloom.methods.scaffold import distance


class FedDC(Part):
    """Each client learns its drift; the server corrects the average by it."""

    paper = "Gao et al. 2022, FedDC"
    work = "one to three vector operations per step"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "alpha": Span(0.001, 0.1, log=True, source="a decade around the default of 0.01")
    }
    plain_sgd = "computes a client's gradient from its movement, learning rate and number of steps"
    alpha: Positive = 0.01
    """strength of the drift's penalty"""

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"update": torch.zeros_like(weights), "drift": torch.zeros_like(weights)}

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"update": torch.zeros_like(weights), "drift": torch.zeros_like(weights)}

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"update": torch.zeros_like(weights)}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        return {"update": state["update"]}

    def correct_gradient(self, gradient: Tensor, client: ClientContext) -> None:
        size = _size(client.samples, client.task)
        gradient.add_(client.weights - client.global_weights + client.state["drift"], alpha=self.alpha / size)
        gradient.add_(client.broadcast["update"], alpha=1 / size).sub_(client.state["update"])

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # no step on shared weights

    def after_training(self, client: ClientContext) -> None:
        size = _size(client.samples, client.task)
        move = client.weights - client.global_weights
        scale = client.lr * distance(client.segments, client.momentum)
        change = -client.broadcast["update"] / size - move / scale
        client.upload["update"] = change
        client.state["update"] = client.state["update"] + change
        client.state["drift"] = client.state["drift"] + move

    def aggregate(self, server: ServerContext) -> Tensor:
        for w_i in server.uploads:
            server.state["drift"].add_(w_i - server.weights, alpha=1 / server.task.clients)
        return server.mean(server.uploads) + server.state["drift"]

    def after_aggregation(self, server: ServerContext) -> None:
        for samples, change in zip(server.samples, server.extras("update"), strict=True):
            server.state["update"].add_(change, alpha=_size(samples, server.task) / server.task.clients)


def _size(samples: int, task: TaskInfo) -> float:
    """n~_i: a client's samples in units of the mean client's."""
    return samples * task.clients / task.samples
