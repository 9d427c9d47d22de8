"""FedFR (Kim et al. 2023, in FedFN): penalize feature norms instead of removing them.

    L = cross-entropy + mu * mean ||f||_2     (the norm, not its square)

Default mu = 0.005, the paper's choice for CIFAR-10; it tried 0.0001 to 0.05, and 0.5 diverges. At f = 0 the gradient
is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import NonNegative
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.api.search import Range, Span


class FR(Part):
    """Penalizes the norm of features."""

    paper = "Kim et al. 2023, FedFN"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "mu": Span(0.0001, 0.05, log=True, source="Kim et al. 2023 try 0.0001 to 0.05")
    }
    mu: NonNegative = 0.005
    """weight of the mean feature norm"""

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(batch.features, dim=1)
        return self.mu * norms.mean()


alias("fedfr", "fr")
