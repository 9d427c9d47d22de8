"""FedSOL (Lee et al., CVPR 2024): take the gradient where distillation would have pushed back.

    g_p = gradient at w of KL(softmax(z_g / 3) || softmax(z / 3))
    g   = gradient of the loss at w + rho g_p / ||g_p||,   w <- w - eta g

KL is the mean over the batch without the factor t^2. `adaptive`: the perturbation is multiplied, tensor by tensor, by
|w - w_g| normalised along its first dimension. At the first step w = w_g and g_p = 0 (unless normalisers train on
the batch and teach on running averages); the norm is guarded by 1e-12, and g_p is written so that it is zero to the
bit there, for rounding errors would be stretched to the length rho. The second pass leaves no trace in running
statistics. Default rho = 1 (authors' configurations); FedDr+ prints 2. Twice the work of a step, and a teacher's
forward pass.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.part import NonNegative, Part, Positive
from fedloom.methods.seen import Batch, Client


class FedSOL(Part):
    """Gradient at weights perturbed along a distillation gradient."""

    paper = "Lee et al. 2024, FedSOL"
    rho: NonNegative = 1.0
    t: Positive = 3.0
    adaptive: bool = False

    def gradient(self, client: Client, batch: Batch) -> Tensor:
        g_p = client.gradient_of(self._distance, batch=batch)
        step = g_p * (self.rho / (torch.linalg.vector_norm(g_p) + 1e-12))
        if self.adaptive:
            scales = client.named((client.w - client.start).abs())
            for name, piece in client.named(step).items():
                piece.mul_(F.normalize(scales[name], dim=0))
        return client.gradient_of(at=client.w + step, batch=batch)

    def _distance(self, batch: Batch) -> Tensor:
        """Its gradient is that of the KL divergence, (q - p) / t by logit; exactly zero where the logits are equal."""
        z, z_g = batch.logits / self.t, batch.teacher("global").logits / self.t
        return ((z.detach().softmax(1) - z_g.softmax(1)) * z).sum(1).mean()
