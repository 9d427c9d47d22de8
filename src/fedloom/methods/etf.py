"""FedETF (Li et al., ICCV 2023): a learned projection onto a fixed simplex, with balanced softmax.

    z = s * E^T normalize(P f),   L = cross-entropy of z + gamma log n_c

P (C x d, no bias) and the scale s (initially 1) are trained and shared; E is a fixed C x C simplex ETF; n_c counts
the client's samples of class c. A class without samples on the client has logit -inf and takes no part in the
softmax. Predictions use z alone. Default gamma = 1.

Personalization (`personalize --part alternate`, 123 epochs at rate 0.05 in the released code): the whole model for three epochs
by the loss above, then in turns the rows of E, three epochs of plain SGD at twice the rate, and P, three epochs, both by
cross-entropy of z. The released code trains the whole model at its training rate, 0.04 or 0.01; here it has P's.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.methods.api.alternation import Alternation, Turn
from fedloom.methods.api.context import Batch, ClientContext, TaskInfo
from fedloom.methods.api.hyperparameters import NonNegative
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.api.search import RateScale
from fedloom.nets import Net
from fedloom.nets.layers.heads import simplex_etf
from fedloom.weights import REGIONS


class ProjectedHead(nn.Module):
    """z = s * E normalize(P f), with E fixed."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.in_features, self.out_features = dim, classes
        self.projection = nn.Linear(dim, classes, bias=False)
        self.scale = nn.Parameter(torch.ones(1))
        self.weight = nn.Parameter(simplex_etf(torch.randn(classes, classes)), requires_grad=False)

    def meets(self, f: Tensor) -> Tensor:
        """What the rows of the weight are compared with."""
        met: Tensor = self.projection(f)
        return met

    def forward(self, f: Tensor) -> Tensor:
        return self.scale * F.linear(F.normalize(self.meets(f), eps=1e-12), self.weight)


class ETF(Part):
    """A learned projection onto a fixed simplex, balanced by class counts."""

    paper = "Li et al. 2023, FedETF"
    rate_scale: ClassVar[RateScale | None] = RateScale(
        1, 10, source="Kim et al. 2024: 0.05, 0.5 and 1 where cross-entropy takes 0.01, 0.1 and 0.1"
    )
    replaces: ClassVar[frozenset[str]] = frozenset({"head"})
    alternation: ClassVar[Alternation | None] = Alternation(
        first=(Turn("full", REGIONS, epochs=3),),
        turns=(
            Turn("vectors", ("head.weight",), epochs=3, rate=2.0, objective="ce", plain=True, fixed=True),
            Turn("projection", ("head.projection",), epochs=3, objective="ce"),
        ),
    )
    gamma: NonNegative = 1.0
    """strength of the balance by class counts"""

    def build(self, net: Net, task: TaskInfo) -> Net:
        net.head = ProjectedHead(net.dim, net.classes)
        return net

    def loss(self, batch: Batch, client: ClientContext) -> Tensor:
        shift = self.gamma * torch.log(client.counts) if self.gamma else torch.zeros_like(client.counts)
        return F.cross_entropy(batch.logits + shift, batch.y)


alias("fedetf", "etf")
