"""Logit distillation, a regularizer of FedDr+'s grid.

    R = (1/C) ||z - z_g||_2^2,   averaged over the batch

The paper does not say whether it takes the mean or the sum over classes; this is the mean. z and z_g are outputs of
the head, as in kd.py: the plain simplex logits under `gela`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.search import Range, Span
from fedloom.methods.common.regularizer import Regularizer


class LD(Regularizer):
    """Keeps logits near those of the global model."""

    paper = "Kim et al. 2024, FedDr+"
    work = "a teacher's forward pass per step"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "weight": Span(0.1, 10.0, log=True, source="a decade around the default of 1")
    }

    def term(self, batch: Batch, client: ClientContext) -> Tensor:
        return F.mse_loss(batch.logits, client.teacher(batch).logits)
