"""MOON (Li et al., CVPR 2021): features agree with the global model's and differ from those of the client's previous model.

    R = mean -log[ e^{cos(z, z_g)/T} / (e^{cos(z, z_g)/T} + e^{cos(z, z_prev)/T}) ]
    L = cross-entropy + weight * R

z_g and z_prev come from the broadcast weights and from the client's last local weights (the initial weights before
its first round), without gradient. Without a projection head z is the feature, as in FedNTD's and FedDr+'s code,
whose weight 0.1 and T = 0.5 are the defaults; FedDr+ prints 1, the authors 5 for CIFAR-10 and 1 for CIFAR-100.
`projection = 256` inserts the authors' d -> d -> 256 between body and head, and z is its output. Costs two more
forward passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.methods.api.context import Batch, ClientContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import Count, NonNegative, Positive
from fedloom.methods.api.search import Range, Span
from fedloom.methods.common.regularizer import Regularizer
from fedloom.nets import Net


class Moon(Regularizer):
    """Contrastive term: features near the global model's, away from the client's previous model's."""

    paper = "Li et al. 2021, MOON"
    work = "two teachers' forward passes per step"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "weight": Span(0.1, 10.0, log=True, source="Li et al. 2021 try 0.1, 1, 5 and 10")
    }
    weight: NonNegative = 0.1
    """weight of the term"""
    temperature: Positive = 0.5
    """temperature of similarities"""
    projection: Count | None = None
    """width of a projection between body and head; null: none"""

    def build(self, net: Net, task: TaskInfo) -> Net:
        if self.projection is None:
            return net
        if not isinstance(net.head, nn.Linear) or not net.head.weight.requires_grad:
            raise FedloomError(
                f"the projection goes before a linear head that is trained, and this head is a "
                f"{type(net.head).__name__}; where a part replaces the head, write moon before it in the sum"
            )
        body = nn.Sequential(net.body, nn.Linear(net.dim, net.dim), nn.ReLU(), nn.Linear(net.dim, self.projection))
        return Net(body, nn.Linear(self.projection, net.classes), self.projection, net.classes)

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"previous": task.initial}

    def term(self, batch: Batch, client: ClientContext) -> Tensor:
        near = F.cosine_similarity(batch.features, client.teacher(batch).features) / self.temperature
        far = F.cosine_similarity(batch.features, client.teacher(batch, "previous").features) / self.temperature
        return F.cross_entropy(torch.stack([near, far], 1), torch.zeros_like(batch.y))

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # no step on shared weights

    def after_training(self, client: ClientContext) -> None:
        client.state["previous"] = client.storage
