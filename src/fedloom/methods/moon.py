"""MOON (Li et al., CVPR 2021): features agree with the global model's and move away from the client's own last ones.

    R = mean -log[ e^{cos(z, z_g)/T} / (e^{cos(z, z_g)/T} + e^{cos(z, z_prev)/T}) ]
    L = cross-entropy + weight * R

z_g and z_prev come from the weights the round began with and from the client's last local weights (those as drawn,
before its first round), without gradient. Without a projection head z is the feature, as in FedNTD's and FedDr+'s
code, whose weight 0.1 and T = 0.5 are the defaults; FedDr+ prints 1, the authors 5 for CIFAR-10 and 1 for CIFAR-100.
`projection = 256` puts the authors' d -> d -> 256 between body and head, and z is its output. Two more forward
passes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.methods.part import Count, NonNegative, Positive
from fedloom.methods.regulariser import Regulariser
from fedloom.methods.seen import Batch, Client, Memory, Task
from fedloom.nets import Net


class Moon(Regulariser):
    """Contrast: near the global model's features, away from the client's last ones."""

    paper = "Li et al. 2021, MOON"
    weight: NonNegative = 0.1
    temperature: Positive = 0.5
    projection: Count | None = None

    def build(self, net: Net, task: Task) -> Net:
        if self.projection is None:
            return net
        if not isinstance(net.head, nn.Linear) or not net.head.weight.requires_grad:
            raise FedloomError(
                f"the projection goes before a linear head that is trained, and this head is a "
                f"{type(net.head).__name__}; where a part replaces the head, write moon before it in the sum"
            )
        body = nn.Sequential(net.body, nn.Linear(net.dim, net.dim), nn.ReLU(), nn.Linear(net.dim, self.projection))
        return Net(body, nn.Linear(self.projection, net.classes), self.projection, net.classes)

    def client_memory(self, w: Tensor, task: Task) -> Memory:
        return {"previous": task.initial}

    def term(self, batch: Batch) -> Tensor:
        near = F.cosine_similarity(batch.features, batch.teacher("global").features) / self.temperature
        far = F.cosine_similarity(batch.features, batch.teacher("previous").features) / self.temperature
        return F.cross_entropy(torch.stack([near, far], 1), torch.zeros_like(batch.y))

    def further(self, hook: str) -> tuple[()]:
        return ()  # no step on what is shared

    def finish(self, client: Client) -> None:
        client.memory["previous"] = client.whole
