"""Knowledge distillation from the global model, as a regulariser (FedDr+'s grid).

    R = t^2 KL(softmax(z_g / t) || softmax(z / t)),   averaged over the batch

z are logits of the method's own head, z_g those of the weights the round began with, without gradient. Default t = 1.
Logits are what the head returns, before anything that a loss does to them: the plain simplex logits under `gela` (no
class counts, no temperature), logits without log-priors under `etf`, without `scale` under `sphere`. FedDr+ does not
print which logits its grid distills.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.part import Positive
from fedloom.methods.regulariser import Regulariser
from fedloom.methods.seen import Batch


class KD(Regulariser):
    """Distils the global model's logits into the local one."""

    paper = "Hinton et al. 2015; Kim et al. 2024, FedDr+"
    t: Positive = 1.0

    def term(self, batch: Batch) -> Tensor:
        return divergence(batch.teacher("global").logits, batch.logits, self.t)


def divergence(teacher: Tensor, student: Tensor, t: float) -> Tensor:
    """t^2 KL(softmax(teacher / t) || softmax(student / t)), the mean over the batch."""
    p, q = F.log_softmax(teacher / t, 1), F.log_softmax(student / t, 1)
    return t * t * F.kl_div(q, p, reduction="batchmean", log_target=True)
