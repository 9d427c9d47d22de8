"""FedLC (Zhang et al., ICML 2022): logits are calibrated by the client's class counts.

    L = CE(z', y),   z'_c = z_c - tau n_c^(-1/4),   z'_c = -infinity where n_c = 0

Rare classes get a larger margin. Only differences of the shifts matter: clients with equal counts of all classes train as in
FedAvg, and so does tau = 0 where no class is missing. A class without samples is left out of the client's softmax (n^(-1/4) is
infinite); some ports use a large finite shift instead, which is the same to float precision. `absent = keep` leaves its logit
as it is.

Departure: the paper prints a denominator without the true class, which has no lower bound; every published code, and this one,
uses the cross-entropy. Counts, not frequencies, so tau depends on the size of the data. Default tau = 1. The model is
evaluated with plain logits.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import NonNegative
from fedloom.methods.api.part import Part


class FedLC(Part):
    """Logits calibrated by the client's class counts."""

    paper = "Zhang et al. 2022, FedLC"
    variants: ClassVar[frozenset[str]] = frozenset({"absent"})
    tau: NonNegative = 1.0
    absent: Literal["mask", "keep"] = "mask"

    def loss(self, batch: Batch, client: ClientContext) -> Tensor:
        counts = client.counts
        shifted = batch.logits - self.tau * counts.clamp(min=1).pow(-0.25) * (counts > 0)
        if self.absent == "mask":
            shifted = torch.where(counts > 0, shifted, torch.full_like(shifted, -torch.inf))
        return F.cross_entropy(shifted, batch.y)
