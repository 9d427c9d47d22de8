"""Feature distillation (the second half of FedDr+, Kim et al. 2024): keep features near those of the global model.

    L = beta * L_base + (1 - beta) * (1/d) ||f - f_g||_2^2

f and f_g are unnormalized features of the local and of the frozen global model (evaluation mode, no gradient); the
mean is over batch and dimensions. Default beta = 0.9; the paper finds [0.3, 0.9] flat and 0 or 1 poor. Costs one more
forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import Share
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.api.search import Range, Span


class FD(Part):
    """Feature distillation from the global model, as a convex mix."""

    paper = "Kim et al. 2024, FedDr+"
    work = "a teacher's forward pass per step"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "beta": Span(0.3, 0.99, source="Kim et al. 2024: 0.3 to 0.9 is flat, 0 and 1 are poor")
    }
    beta: Share = 0.9
    """share of the loss; 1 - beta is that of the distillation"""

    def mix_share(self) -> float | None:
        return self.beta

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        return F.mse_loss(batch.features, client.teacher(batch).features)


alias(
    "feddrplus", "dr + fd", "dot-regression on a frozen ETF head with feature distillation", "Kim et al. 2024, FedDr+"
)
