"""FedSAM (Qu et al., ICML 2022; Caldarola et al., ECCV 2022): sharpness-aware minimization on clients.

    e = rho g / ||g||,   g = gradient of the loss at w;   step with the gradient at w + e, on the same batch

The norm is over all shared weights and guarded by 1e-12. `adaptive` (ASAM): e = rho T^2 g / ||T g||, T = |w| + eta for weight
matrices and kernels, 1 for vectors; Caldarola et al. take rho = 0.7, eta = 0.2. Weight decay, momentum and clipping act on the
second gradient, at w. Running statistics are updated by the first pass alone; published codes update them in both. rho = 0 is
FedAvg. Default rho = 0.1. A step costs twice the work.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import NonNegative
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias


class SAM(Part):
    """The gradient at weights perturbed along the gradient, towards flat minima."""

    paper = "Qu et al. 2022, FedSAM"
    variants: ClassVar[frozenset[str]] = frozenset({"adaptive"})
    rho: NonNegative = 0.1
    adaptive: bool = False
    eta: NonNegative = 0.2

    def gradient(self, batch: Batch, client: ClientContext) -> Tensor:
        gradient = client.gradient_of(batch=batch)
        if self.rho == 0:
            return gradient
        if self.adaptive:
            sizes = client.named(client.weights.abs())
            for name, piece in client.named(gradient).items():
                if piece.dim() > 1:
                    piece.mul_(sizes[name] + self.eta)
        step = gradient * (self.rho / (torch.linalg.vector_norm(gradient) + 1e-12))
        if self.adaptive:
            for name, piece in client.named(step).items():
                if piece.dim() > 1:
                    piece.mul_(sizes[name] + self.eta)
        return client.gradient_of(at=client.weights + step, batch=batch)


alias("fedsam", "sam")
