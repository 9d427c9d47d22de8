"""FedLESAM (Fan et al., ICML 2024): sharpness-aware steps along a perturbation that is known before the round.

    e_i = rho (w_old,i - w_g) / ||w_old,i - w_g||,   step with the gradient at w + e_i

w_old,i is the global model that client i received in its previous round: from new to old is uphill, an estimate of the global
gradient's direction where FedSAM climbs the local one. e_i is constant within a round, and a client's first round has none.
Clients keep w_old,i; messages are those of FedAvg. The norm is over the shared weights and guarded by 1e-12.

Departures from the published code, which is not the paper's method: it perturbs all clients along the last server step, sums
the norms of single tensors, and indexes the flat step by the number of a tensor, so that every entry of a tensor is shifted by
one scalar. Its variants on SCAFFOLD and FedDyn are the sums `fedlesam + scaffold` and `fedlesam + feddyn`, without the factor
0.1 that the code puts before SCAFFOLD's correction.

Running statistics are those of the pass at w + e_i, the only one. Weight decay, momentum and corrections act at w. Default rho
= 0.1 (authors' code; 0.5 in some of their commands). rho = 0 is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import NonNegative
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span


class FedLESAM(Part):
    """The gradient at weights perturbed back along the global model's last movement."""

    paper = "Fan et al. 2024, FedLESAM"
    work = "four vector operations per step"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "rho": Span(0.01, 0.5, log=True, source="published: 0.01, 0.1 and 0.5"),
    }
    rho: NonNegative = 0.1
    """length of the perturbation; 0 is FedAvg"""

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"old": weights.clone(), "known": torch.zeros(1)}

    def gradient(self, batch: Batch, client: ClientContext) -> Tensor:
        if self.rho == 0 or not client.state["known"]:
            return client.gradient_of(batch=batch)
        weights = client.weights.clone()
        back = client.state["old"].to(weights.device) - client.global_weights
        # in place, since `gradient_of` at other weights would restore the running statistics
        client.weights.add_(back, alpha=self.rho / (float(torch.linalg.vector_norm(back)) + 1e-12))
        gradient = client.gradient_of(batch=batch)
        client.weights.copy_(weights)
        return gradient

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # no step on shared weights

    def after_training(self, client: ClientContext) -> None:
        client.state["old"] = client.global_weights
        client.state["known"] = torch.ones(1)
