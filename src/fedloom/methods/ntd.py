"""FedNTD (Lee et al., NeurIPS 2022): distill only the global model's logits of the not-true classes.

    R = t^2 KL(softmax(z_g^{-y} / t) || softmax(z^{-y} / t)),   over the C - 1 logits of the not-true classes

Knowledge of classes outside a client's data is kept, while the true class is free to be learned. Defaults weight = 1,
t = 1 as in the authors' configurations; FedDr+ prints t = 3. With two classes there is a single not-true one and R is
zero. Logits are the output of the head, as in kd.py: the plain simplex logits under `gela`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import Positive
from fedloom.methods.api.registry import alias
from fedloom.methods.api.search import Range, Span
from fedloom.methods.common.regularizer import Regularizer
from fedloom.methods.kd import divergence


class NTD(Regularizer):
    """Distills the global model's view of the not-true classes."""

    paper = "Lee et al. 2022, FedNTD"
    work = "a teacher's forward pass per step"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "weight": Span(0.1, 10.0, log=True, source="a decade around the default of 1"),
        "t": Span(1.0, 5.0, source="Lee et al. 2022 and Kim et al. 2024 take 1 and 3"),
    }
    t: Positive = 1.0
    """temperature"""

    def term(self, batch: Batch, client: ClientContext) -> Tensor:
        return divergence(_without(client.teacher(batch).logits, batch.y), _without(batch.logits, batch.y), self.t)


def _without(logits: Tensor, y: Tensor) -> Tensor:
    """(B, C) -> (B, C - 1): each row without the column of its true class."""
    classes = logits.shape[1]
    columns = torch.arange(classes - 1, device=logits.device).expand(len(y), -1)
    return logits.gather(1, columns + (columns >= y[:, None]))


alias("fedntd", "ntd")
