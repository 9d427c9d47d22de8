"""RFA (Pillutla, Kakade, Harchaoui, 2022): the geometric median of the uploads, by smoothed Weiszfeld steps.

    z_0 = sum_i p_i w_i,   b_i = p_i / max(nu, ||z - w_i||),   z <- sum_i b_i w_i / sum_i b_i,   `steps` times

p_i are the weights of the recipe, as in the authors' code. Defaults: 4 steps, nu = 1e-5; the authors' code also stops when the
objective falls by less than 1e-6 of itself, which changes z by less than that. steps = 0 is the mean. Norms are computed in
double precision.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedloom.methods.api.context import ServerContext
from fedloom.methods.api.hyperparameters import Positive
from fedloom.methods.api.part import Part


class RFA(Part):
    """The geometric median of the uploads."""

    paper = "Pillutla et al. 2022, RFA"
    bounds: ClassVar[bool] = True
    steps: Annotated[int, Field(ge=0)] = 4
    """Weiszfeld steps; 0 is the mean"""
    nu: Positive = 1e-5
    """smallest distance that is divided by"""

    def aggregate(self, server: ServerContext) -> Tensor:
        center = server.mean(server.uploads)
        for _ in range(self.steps):
            far = [torch.linalg.vector_norm((center - w_i).double()) for w_i in server.uploads]
            raw = [share / max(self.nu, float(norm)) for share, norm in zip(server.shares, far, strict=True)]
            total = sum(raw)
            center = torch.zeros_like(center)
            for weight, w_i in zip(raw, server.uploads, strict=True):
                center.add_(w_i, alpha=weight / total)
        return center
