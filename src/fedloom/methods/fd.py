"""Feature distillation (the second half of FedDr+, Kim et al. 2024): keep features near those of the global model.

    L = beta * L_base + (1 - beta) * (1/d) ||f - f_g||_2^2

f and f_g are un-normalised features of the local and of the frozen global model (in evaluation mode, no gradient),
the mean is over batch and dimensions. Default beta = 0.9; the paper finds [0.3, 0.9] flat and 0 or 1 poor. One more
forward pass.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.method import alias
from fedloom.methods.part import Part, Share
from fedloom.methods.seen import Batch


class FD(Part):
    """Feature distillation from the global model, as a convex mix."""

    paper = "Kim et al. 2024, FedDr+"
    beta: Share = 0.9

    @property
    def mix(self) -> float:
        return self.beta

    def penalty(self, batch: Batch) -> Tensor:
        return F.mse_loss(batch.features, batch.teacher("global").features)


alias(
    "feddrplus", "dr + fd", "dot-regression on a frozen ETF head with feature distillation", "Kim et al. 2024, FedDr+"
)
