"""Logit distillation, a regulariser of FedDr+'s grid.

    R = (1/C) ||z - z_g||_2^2,   averaged over the batch

The paper does not say whether it takes the mean or the sum over classes; this is the mean. z and z_g are what the head
returns, as in kd.py: the plain simplex logits under `gela`.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.regulariser import Regulariser
from fedloom.methods.seen import Batch


class LD(Regulariser):
    """Keeps logits near those of the global model."""

    paper = "Kim et al. 2024, FedDr+"

    def term(self, batch: Batch) -> Tensor:
        return F.mse_loss(batch.logits, batch.teacher("global").logits)
