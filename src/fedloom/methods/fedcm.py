"""FedCM (Xu et al., 2021): client momentum towards the last global step.

    step:    v = alpha g + (1 - alpha) Delta
    server:  Delta <- (w_g - w_new) / (lr * a),   a = mean over S of the effective steps, weighted as the uploads

Delta, zero at first, is the average gradient of the last round: its global movement per step. Clients keep no state; the
broadcast is twice as large. In the first round v = alpha g, so steps are 1 / alpha times shorter, as published. With local
momentum r, K steps move the weights by a_K (see scaffold.py), which replaces K; the authors use none, and local momentum on
top multiplies steps by 1 / (1 - r). Weight decay is added after the mix (to v, in published codes too): its fixed point is
1 / alpha times stronger than in FedAvg. The mean movement is that of the recipe's aggregate, so other parts may aggregate.
alpha = 1 is FedAvg. Default alpha = 0.1. `sam + fedcm` is MoFedSAM.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedloom.methods.api.context import ClientContext, ServerContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import Share
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.scaffold import distance


class FedCM(Part):
    """Local steps mix the gradient with the last round's global step."""

    paper = "Xu et al. 2021, FedCM"
    plain_sgd = "computes the average gradient from the global movement, learning rate and number of steps"
    alpha: Share = 0.1

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"step": torch.zeros_like(weights), "before": weights.clone()}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        return {"step": state["step"]}

    def correct_gradient(self, gradient: Tensor, client: ClientContext) -> None:
        gradient.mul_(self.alpha).add_(client.broadcast["step"], alpha=1 - self.alpha)

    def after_aggregation(self, server: ServerContext) -> None:
        lengths = [distance(segments, server.momentum) for segments in server.segments]
        steps = sum(share * length for share, length in zip(server.shares, lengths, strict=True))
        server.state["step"] = (server.state["before"] - server.weights) / (server.lr * steps)
        server.state["before"] = server.weights


alias("mofedsam", "sam + fedcm", "FedSAM with client momentum", "Qu et al. 2022, MoFedSAM")
