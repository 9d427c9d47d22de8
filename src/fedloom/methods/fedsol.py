"""FedSOL (Lee et al., CVPR 2024): take the gradient at weights perturbed along a distillation gradient.

    g_p = gradient at w of KL(softmax(z_g / 3) || softmax(z / 3))
    g   = gradient of the loss at w + rho g_p / ||g_p||,   w <- w - eta g

KL is the mean over the batch without the factor t^2. `adaptive`: the perturbation is multiplied, tensor by tensor, by
|w - w_g| normalized along its first dimension. At the first step w = w_g and g_p = 0 (unless normalizers use the
batch in training and running averages in the teacher). The norm is guarded by 1e-12, and g_p is written so that it is
exactly zero there; otherwise rounding errors would be scaled to length rho. The second pass does not change running
statistics. Default rho = 1 (authors' configurations); FedDr+ prints 2. A step costs twice the work and a teacher's
forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import NonNegative, Positive
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span


class FedSOL(Part):
    """Gradient at weights perturbed along a distillation gradient."""

    paper = "Lee et al. 2024, FedSOL"
    work = "a second forward and backward pass per step, and a teacher's forward pass"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "rho": Span(0.1, 5.0, log=True, source="the authors' 1, Kim et al. 2024's 2, and around")
    }
    rho: NonNegative = 1.0
    """length of the perturbation"""
    t: Positive = 3.0
    """temperature of the distillation"""
    adaptive: bool = False
    """scale the perturbation by the distance from the global weights"""

    def gradient(self, batch: Batch, client: ClientContext) -> Tensor:
        g_p = client.gradient_of(self._distance, batch=batch)
        step = g_p * (self.rho / (torch.linalg.vector_norm(g_p) + 1e-12))
        if self.adaptive:
            scales = client.named((client.weights - client.global_weights).abs())
            for name, piece in client.named(step).items():
                piece.mul_(F.normalize(scales[name], dim=0))
        return client.gradient_of(at=client.weights + step, batch=batch)

    def _distance(self, batch: Batch, client: ClientContext) -> Tensor:
        """Its gradient is that of the KL divergence, (q - p) / t by logit; exactly zero where the logits are equal."""
        z, z_g = batch.logits / self.t, client.teacher(batch).logits / self.t
        return ((z.detach().softmax(1) - z_g.softmax(1)) * z).sum(1).mean()
