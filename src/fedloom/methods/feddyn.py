"""FedDyn (Acar et al., ICLR 2021): each client's loss is bent so that its minimum agrees with the global one.

    L = cross-entropy - <lambda_i, w> + (alpha/2) ||w - w_g||^2,   so   g <- g - lambda_i + alpha (w - w_g)
    client:  lambda_i <- lambda_i - alpha (w_i - w_g)
    server:  h <- h - (alpha/N) sum over S of (w_i - w_g),   w_g <- mean over S of w_i - h / alpha

The mean is taken as the recipe weighs clients. What is broadcast, tested and handed out is the server's w_g ("cloud
model" of the authors' code). The terms act on the gradient before momentum. Default alpha = 0.01 (FedDC's CIFAR runs,
FedNN); FedNTD's code uses 0.1. With partial participation h drifts without bound; use gradient clipping (`--set
clip=10`) as the authors do. Beside a second act (fnr), lambda_i comes from the weights that the client finally uploads,
which are those that h is moved by; the extra steps are bent by the same lambda_i as the first ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.methods.part import Part, Positive
from fedloom.methods.seen import Client, Memory, Server, Task


class FedDyn(Part):
    """Dynamic regularisation: local minima are bent towards the global one."""

    paper = "Acar et al. 2021, FedDyn"
    sums = "equal"  # of the weights, for h; the mean beside it is another sum unless clients weigh alike
    alpha: Positive = 0.01

    def server_memory(self, w: Tensor, task: Task) -> Memory:
        return {"h": torch.zeros_like(w)}

    def client_memory(self, w: Tensor, task: Task) -> Memory:
        return {"gradient": torch.zeros_like(w)}

    def correct(self, gradient: Tensor, client: Client) -> None:
        gradient.sub_(client.memory["gradient"]).add_(client.w - client.start, alpha=self.alpha)

    def further(self, hook: str) -> tuple[()]:
        return ()  # no step on what is shared

    def finish(self, client: Client) -> None:
        client.memory["gradient"] = client.memory["gradient"] - self.alpha * (client.w - client.start)

    def combine(self, server: Server) -> Tensor:
        h = server.memory["h"]
        for w_i in server.uploads:
            h.sub_(w_i - server.weights, alpha=self.alpha / server.task.clients)
        return server.mean(server.uploads) - h / self.alpha
