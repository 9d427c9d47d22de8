"""Knowledge distillation from the global model, as a regularizer (FedDr+'s grid).

    R = t^2 KL(softmax(z_g / t) || softmax(z / t)),   averaged over the batch

z are logits of the method's own head, z_g those of the broadcast weights, without gradient. Default t = 1. Logits are
the output of the head, before any change by a loss: the plain simplex logits under `gela` (no class counts, no
temperature), logits without log-priors under `etf`, without `scale` under `sphere`. FedDr+ does not print which
logits its grid distills.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import Positive
from fedloom.methods.api.search import Range, Span
from fedloom.methods.common.regularizer import Regularizer


class KD(Regularizer):
    """Distills the global model's logits into the local one."""

    paper = "Hinton et al. 2015; Kim et al. 2024, FedDr+"
    work = "a teacher's forward pass per step"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "weight": Span(0.1, 10.0, log=True, source="a decade around the default of 1")
    }
    t: Positive = 1.0
    """temperature"""

    def term(self, batch: Batch, client: ClientContext) -> Tensor:
        return divergence(client.teacher(batch).logits, batch.logits, self.t)


def divergence(teacher: Tensor, student: Tensor, t: float) -> Tensor:
    """t^2 KL(softmax(teacher / t) || softmax(student / t)), the mean over the batch."""
    p, q = F.log_softmax(teacher / t, 1), F.log_softmax(student / t, 1)
    return t * t * F.kl_div(q, p, reduction="batchmean", log_target=True)
