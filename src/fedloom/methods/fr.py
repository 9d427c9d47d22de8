"""FedFR (Kim et al. 2023, in FedFN): penalise feature norms instead of removing them.

    L = cross-entropy + mu * mean ||f||_2     (the norm, not its square)

Default mu = 0.005, the paper's choice for CIFAR-10; it tried 0.0001 to 0.05, and 0.5 diverges. At f = 0 the gradient
is taken as zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.methods.method import alias
from fedloom.methods.part import NonNegative, Part
from fedloom.methods.seen import Batch


class FR(Part):
    """Penalises the norm of features."""

    paper = "Kim et al. 2023, FedFN"
    mu: NonNegative = 0.005

    def penalty(self, batch: Batch) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(batch.features, dim=1)
        return self.mu * norms.mean()


alias("fedfr", "fr", "FedAvg with a penalty on feature norms", "Kim et al. 2023, FedFN")
