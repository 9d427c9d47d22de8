"""pFedMe (Dinh et al., NeurIPS 2020): each client's model is the proximal point of the global one (a Moreau envelope).

The claim: with F_i(w) = min_theta f_i(theta) + lam/2 ||theta - w||^2 in place of f_i, the personal models theta_i follow their
own data and the global model w follows the clients, at the speed of FedAvg. For every batch of local training:

    theta <- theta - alpha (grad f_i(theta) + lam (theta - w_i) + mu theta)     `steps` times, on this batch
    w_i   <- w_i - eta lam (w_i - theta)

The second line is a step of the local loop: lam (w_i - theta) is the gradient of F_i, eta the recipe's rate, with its momentum,
decay and schedule (the paper has none of them: `--momentum 0`). theta starts a round at the broadcast weights and goes on from
step to step. f_i is the method's loss with its regularizers. theta is kept as client state and never sent: the client's
personal accuracy is that of its theta of the last round that it took part in, with the global statistics of normalizers. A
client that never took part has the global model.

The paper's server step w <- (1 - beta) w + beta mean w_i is a part of its own: `pfedme + fedavgm(beta=0, lr=BETA)`; without it
beta is 1. The mean is weighted as the recipe says (paper: uniform; code: by samples).

Departures: one round is the recipe's epochs, where the authors take 20 batches. Published codes evaluate w_i or w as the
personal model, since theta is a list of live parameters that is overwritten later; here it is theta. Their code also trains all
clients in every round and samples only whom to average. mu, a decay that only the code has (0.001), is 0.
Defaults: lam = 15, steps = 5, alpha = 0.09, the code's; it is stable while alpha (L + lam + mu) < 2, L the curvature of f_i.
lam = 0 leaves w where it is. With eta = 1 / lam each step puts w_i at theta. A step costs `steps` gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import Count, NonNegative, Positive
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span


class PFedMe(Part):
    """Personal models by proximal steps; the global model follows them (Moreau envelopes)."""

    paper = "Dinh et al. 2020, pFedMe"
    work = "`steps` - 1 more gradients per step"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "lam": Span(1.0, 30.0, log=True, source="the authors' scripts take 15 to 30; less is ours"),
        "alpha": Span(0.01, 0.1, log=True, source="the authors' scripts"),
    }
    lam: NonNegative = 15.0
    """pull of the personal model to the client's copy of the global one"""
    steps: Count = 5
    """steps of the personal model per batch"""
    alpha: Positive = 0.09
    """rate of the personal model"""
    mu: NonNegative = 0.0
    """decay of the personal model"""

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"theta": weights.clone(), "begun": torch.zeros(1)}

    def gradient(self, batch: Batch, client: ClientContext) -> Tensor:
        w = client.weights.clone()
        theta = (client.state["theta"] if client.steps else client.global_weights).to(w.device, copy=True)
        for step in range(self.steps):
            if step == 0:  # at the weights themselves, so that this pass updates statistics of normalizers
                client.weights.copy_(theta)
                g = client.gradient_of(batch=batch)
                client.weights.copy_(w)
            else:
                g = client.gradient_of(at=theta, batch=batch)
            theta -= self.alpha * (g + self.lam * (theta - w) + self.mu * theta)
        # there is no `after_training` that a query of another part would call again, so it is kept step by step
        client.state["theta"], client.state["begun"] = theta, torch.ones(1)
        return self.lam * (w - theta)

    def personalize(self, client: ClientContext) -> None:
        if bool(client.state["begun"]):
            client.weights.copy_(client.state["theta"])
