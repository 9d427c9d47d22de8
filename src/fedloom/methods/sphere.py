"""SphereFed (Dong et al., ECCV 2022): features on a sphere, a fixed head with orthonormal rows.

    loss = ce:   cross-entropy of scale * V f / ||f||
    loss = mse:  mean over batch and classes of (V f / ||f|| - onehot(y))^2

V has orthonormal rows, made from the drawn head by Gram-Schmidt (so features need at least as many dimensions as
there are classes), and is neither trained nor shared. The factor 1/C inside the mean is why the mean-squared form
needs rates of 4.5 to 6.5 where cross-entropy takes 0.3. Default: cross-entropy with scale 1; FedFN's comparison tried
{1, 10, 15, 20, 25, 30} and found 15 best.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.errors import FedloomError
from fedloom.methods.method import alias
from fedloom.methods.part import Part, Positive
from fedloom.methods.seen import Batch, Task
from fedloom.nets import Net
from fedloom.nets.heads import FixedHead, weight_of


class Sphere(Part):
    """Normalised features on a fixed orthonormal head."""

    paper = "Dong et al. 2022, SphereFed"
    replaces: ClassVar[frozenset[str]] = frozenset({"head"})
    loss: Literal["ce", "mse"] = "ce"
    scale: Positive = 1.0

    def build(self, net: Net, task: Task) -> Net:
        net.head = FixedHead(orthonormal(weight_of(net.head)))
        return net

    def objective(self, batch: Batch) -> Tensor:
        if self.loss == "ce":
            return F.cross_entropy(self.scale * batch.logits, batch.y)
        return F.mse_loss(batch.logits, F.one_hot(batch.y, batch.logits.shape[1]).to(batch.logits.dtype))


def orthonormal(basis: Tensor) -> Tensor:
    """The rows of a (C, d) matrix made orthonormal, in order, as Gram-Schmidt does (by QR in double precision)."""
    classes, dim = basis.shape
    if dim < classes:
        raise FedloomError(
            f"{classes} orthonormal class directions need features of at least {classes} dimensions; these have {dim}"
        )
    q, r = torch.linalg.qr(basis.detach().double().T)
    return torch.where(r.diagonal() < 0, -q, q).T.to(basis.dtype).contiguous()


alias("spherefed", "sphere", "cross-entropy on a fixed orthonormal head", "Dong et al. 2022, SphereFed")
