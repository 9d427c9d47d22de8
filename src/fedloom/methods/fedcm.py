"""FedCM (Xu et al., 2021): client momentum towards the last global step.

    step:    v = alpha g + (1 - alpha) Delta
    server:  Delta <- (w_g - aggregate) / (lr * a),   a = mean over S of the clients' effective steps, weighted as the uploads

Delta, zero at first, is the clients' average gradient of the last round: their mean movement per step. It is taken from the
aggregate of the recipe or of another part (krum), before a server step (fedavgm), which the paper's server rate is as well.
Clients keep no state; the broadcast is twice as large. In the first round v = alpha g, so steps are 1 / alpha times shorter,
as published. With local momentum r, K steps move the weights by a_K (see scaffold.py), which replaces K; the authors use none,
and local momentum on top of this lengthens steps by 1 / (1 - r). Published code takes K of client 0 for all clients.

v covers the shared weights. Corrections of other parts before it in the sum (prox) are mixed with g, later ones are added to
v. Weight decay is added to v, as in published code: its fixed point is 1 / alpha times stronger than in FedAvg. alpha = 1 is
FedAvg. Default alpha = 0.1. `mofedsam` is sam + fedcm (published with alpha = 0.05 and 0.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import ClientContext, ServerContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import Share
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.api.search import Range, Span
from fedloom.methods.scaffold import distance


class FedCM(Part):
    """Local steps mix the gradient with the last round's global step."""

    paper = "Xu et al. 2021, FedCM"
    work = "one to three vector operations per step"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "alpha": Span(0.05, 0.5, log=True, source="published codes take 0.05 and 0.1, and above"),
    }
    plain_sgd = "computes the average gradient from the global movement, learning rate and number of steps"
    alpha: Share = 0.1
    """share of the client's own gradient; 1 is FedAvg"""

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"step": torch.zeros_like(weights), "before": weights.clone()}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        return {"step": state["step"]}

    def correct_gradient(self, gradient: Tensor, client: ClientContext) -> None:
        gradient.mul_(self.alpha).add_(client.broadcast["step"], alpha=1 - self.alpha)

    def after_uploads(self, server: ServerContext) -> None:
        server.state["before"] = server.weights

    def after_aggregation(self, server: ServerContext) -> None:
        lengths = [distance(segments, server.momentum) for segments in server.segments]
        steps = sum(share * length for share, length in zip(server.shares, lengths, strict=True))
        if steps:  # else nobody trained shared weights
            server.state["step"] = (server.state["before"] - server.aggregate) / (server.lr * steps)


alias("mofedsam", "sam + fedcm", "FedSAM with client momentum", "Qu et al. 2022, MoFedSAM")
