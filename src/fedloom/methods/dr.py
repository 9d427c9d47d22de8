"""Dot-regression on a frozen simplex ETF (the first half of FedDr+, Kim et al. 2024).

    L = 1/2 (cos(f, v_y) - 1)^2,   V = sqrt(C/(C-1)) (I - 11^T/C) U^T   (rows of unit length, pairwise cosine -1/(C-1))

Cross-entropy pulls a feature to its class and pushes it away from all others, including classes that a client never
saw; dot-regression only pulls. U is the QR factor of the initial head, so no further randomness enters. Predictions
are argmax V f / ||f||. Features after a ReLU are non-negative while rows of V are not, so cos reaches about 0.7 and
the loss has a floor above zero. Needs a much larger learning rate than cross-entropy (the paper: 0.35 for 0.01, 5.0
for 0.1).
"""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext, TaskInfo
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import RateScale
from fedloom.nets import Net
from fedloom.nets.layers.heads import FixedHead, simplex_etf, weight_of


class DR(Part):
    """Dot-regression onto a frozen simplex ETF head."""

    paper = "Kim et al. 2024, FedDr+"
    rate_scale: ClassVar[RateScale | None] = RateScale(
        10, 50, source="Kim et al. 2024: 0.35, 1 and 5 where cross-entropy takes 0.01, 0.1 and 0.1"
    )
    replaces: ClassVar[frozenset[str]] = frozenset({"head"})

    def build(self, net: Net, task: TaskInfo) -> Net:
        net.head = FixedHead(simplex_etf(weight_of(net.head)))
        return net

    def loss(self, batch: Batch, client: ClientContext) -> Tensor:
        cosine = batch.logits.gather(1, batch.y[:, None])  # the head's rows have unit length: its logits are cosines
        return 0.5 * F.mse_loss(cosine, cosine.new_ones(()).expand_as(cosine))
