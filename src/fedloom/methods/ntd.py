"""FedNTD (Lee et al., NeurIPS 2022): distil only what the global model says of the classes that are not the true one.

    R = t^2 KL(softmax(z_g^{-y} / t) || softmax(z^{-y} / t)),   over the C - 1 logits of the not-true classes

so knowledge of classes outside a client's data is kept, while the true class is free to be learnt. Defaults weight =
1, t = 1 as the authors' configurations; FedDr+ prints t = 3. With two classes there is a single not-true one and R is
zero. Logits are what the head returns, as in kd.py: the plain simplex logits under `gela`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.methods.kd import divergence
from fedloom.methods.method import alias
from fedloom.methods.part import Positive
from fedloom.methods.regulariser import Regulariser
from fedloom.methods.seen import Batch


class NTD(Regulariser):
    """Distils the global model's view of the not-true classes."""

    paper = "Lee et al. 2022, FedNTD"
    t: Positive = 1.0

    def term(self, batch: Batch) -> Tensor:
        return divergence(_without(batch.teacher("global").logits, batch.y), _without(batch.logits, batch.y), self.t)


def _without(logits: Tensor, y: Tensor) -> Tensor:
    """(B, C) -> (B, C - 1): each row without the column of its true class."""
    classes = logits.shape[1]
    columns = torch.arange(classes - 1, device=logits.device).expand(len(y), -1)
    return logits.gather(1, columns + (columns >= y[:, None]))


alias("fedntd", "ntd", "cross-entropy with not-true distillation", "Lee et al. 2022, FedNTD")
