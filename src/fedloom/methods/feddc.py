"""FedDC (Gao et al., CVPR 2022): each client learns its drift and the server corrects the average by it.

    n~_i = n_i N / n,   alpha_i = alpha / n~_i
    L = cross-entropy + (alpha_i/2) ||w - (w_g - h_i)||^2 + <w, D/n~_i - D_i>
    client:  h_i <- h_i + (w_i - w_g),   D_i' = D_i - D/n~_i + (w_g - w_i) / (K eta)
    server:  D <- D + (1/N) sum over S of n~_i (D_i' - D_i),   w_g <- mean over S of w_i + mean over all N of h_i

The server keeps the mean of all h_i itself, since each client's change of h_i is its update. Departures from the
authors' code, where it departs from their paper: K is the client's own number of steps (with momentum the effective
number, see scaffold) and eta the rate of the round. The mean over S is taken as the recipe weighs clients. Default
alpha = 0.01 (CIFAR). h_i grows with every round a client takes part in. Beside a second act (fnr), h_i
and D_i' come from the weights that the client finally uploads, and K is that of all its steps (see scaffold).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedloom.methods.part import Part, Positive
from fedloom.methods.scaffold import distance
from fedloom.methods.seen import Client, Memory, Server, Task


class FedDC(Part):
    """Local drift, learnt and corrected."""

    paper = "Gao et al. 2022, FedDC"
    alpha: Positive = 0.01

    def server_memory(self, w: Tensor, task: Task) -> Memory:
        return {"update": torch.zeros_like(w), "drift": torch.zeros_like(w)}

    def client_memory(self, w: Tensor, task: Task) -> Memory:
        return {"update": torch.zeros_like(w), "drift": torch.zeros_like(w)}

    def uploads(self, w: Tensor, task: Task) -> Memory:
        return {"update": torch.zeros_like(w)}

    def broadcast(self, memory: Mapping[str, Tensor]) -> Memory:
        return {"update": memory["update"]}

    def correct(self, gradient: Tensor, client: Client) -> None:
        size = _size(client.samples, client.task)
        gradient.add_(client.w - client.start + client.memory["drift"], alpha=self.alpha / size)
        gradient.add_(client.broadcast["update"], alpha=1 / size).sub_(client.memory["update"])

    def further(self, hook: str) -> tuple[()]:
        return ()  # no step on what is shared

    def finish(self, client: Client) -> None:
        size = _size(client.samples, client.task)
        move = client.w - client.start
        scale = client.lr * distance(client.segments, client.momentum)
        change = -client.broadcast["update"] / size - move / scale
        client.upload["update"] = change
        client.memory["update"] = client.memory["update"] + change
        client.memory["drift"] = client.memory["drift"] + move

    def combine(self, server: Server) -> Tensor:
        for w_i in server.uploads:
            server.memory["drift"].add_(w_i - server.weights, alpha=1 / server.task.clients)
        return server.mean(server.uploads) + server.memory["drift"]

    def after_combine(self, server: Server) -> None:
        for samples, change in zip(server.samples, server.extras("update"), strict=True):
            server.memory["update"].add_(change, alpha=_size(samples, server.task) / server.task.clients)


def _size(samples: int, task: Task) -> float:
    """n~_i: a client's samples in units of the mean client's."""
    return samples * task.clients / task.samples
