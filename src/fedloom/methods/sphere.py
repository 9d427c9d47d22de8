"""SphereFed (Dong et al., ECCV 2022): features on a sphere, a fixed head with orthonormal rows.

    loss = ce:   cross-entropy of scale * V f / ||f||
    loss = mse:  mean over batch and classes of (V f / ||f|| - onehot(y))^2

V has orthonormal rows, made from the drawn head by Gram-Schmidt (so features need at least as many dimensions as
there are classes), and is neither trained nor shared. The factor 1/C inside the mean is why the mean-squared form
needs rates of 4.5 to 6.5 where cross-entropy takes 0.3. Default of the part: cross-entropy with scale 1; FedFN's
comparison tried {1, 10, 15, 20, 25, 30} and found 15 best.

The alias `spherefed` is sphere(loss=mse): the SphereFed rows of FedDr+ (whose rates of 0.55 and 6.5 are those of the mean
square) and those of FedFN that say MSE. FedFN's rows that say CE are `sphere`. Neither paper calibrates.

`calibrate`: closed-form calibration (FFC) after the last round. All clients send two sums over their training images, with
z = f / ||f|| under the final body; the server solves a ridge regression and hands out its solution as the head:

    V^T = (sum_i Z_i^T Z_i + lambda I)^-1 sum_i Z_i^T Y_i,   lambda = ridge * trace(sum_i Z_i^T Z_i) / d

solved by Cholesky in double precision. The paper prints no lambda; 1e-3 of the mean eigenvalue keeps the system well posed
where features have collapsed. d^2 + d C numbers go up once from every client; the last round's bytes contain them.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.method import alias
from fedloom.methods.part import Part, Positive
from fedloom.methods.seen import Batch, Client, Memory, Server, Slots, Task
from fedloom.nets import Net
from fedloom.nets.heads import FixedHead, orthonormal, weight_of


class Sphere(Part):
    """Normalised features on a fixed orthonormal head."""

    paper = "Dong et al. 2022, SphereFed"
    sums = "shares"  # a survey is another matter, which is seen in the plan
    replaces: ClassVar[frozenset[str]] = frozenset({"head"})
    variants: ClassVar[frozenset[str]] = frozenset({"loss", "calibrate"})
    loss: Literal["ce", "mse"] = "ce"
    scale: Positive = 1.0
    calibrate: bool = False
    ridge: Positive = 1e-3

    def build(self, net: Net, task: Task) -> Net:
        net.head = FixedHead(orthonormal(weight_of(net.head)))
        return net

    def fixes(self) -> tuple[str, ...]:
        return ("head.weight",) if self.calibrate else ()

    def findings(self, net: Net, task: Task) -> Memory:
        if not self.calibrate:
            return {}
        return {"gram": torch.zeros(net.dim, net.dim), "cross": torch.zeros(net.dim, task.classes)}

    def tell(self, client: Client, findings: Slots) -> None:
        gram, cross = findings["gram"].double(), findings["cross"].double()
        gram.zero_(), cross.zero_()
        for batch in client.over():
            z = F.normalize(batch.features.double().cpu(), eps=1e-12)  # (B, d)
            gram += z.T @ z
            cross += z.T @ F.one_hot(batch.y.cpu(), cross.shape[1]).double()
        findings["gram"], findings["cross"] = gram.float(), cross.float()

    def conclude(self, server: Server) -> None:
        if not self.calibrate:
            return
        told = server.survey()
        gram = (told["gram"] + told["gram"].T) / 2
        dim = len(gram)
        ridge = self.ridge * gram.trace() / dim * torch.eye(dim, dtype=gram.dtype)
        factor = torch.linalg.cholesky(gram + ridge)
        server.fix("head.weight", torch.cholesky_solve(told["cross"], factor).T.float())

    def objective(self, batch: Batch) -> Tensor:
        if self.loss == "ce":
            return F.cross_entropy(self.scale * batch.logits, batch.y)
        return F.mse_loss(batch.logits, F.one_hot(batch.y, batch.logits.shape[1]).to(batch.logits.dtype))


alias("spherefed", "sphere(loss=mse)", "mean squared error on a fixed orthonormal head", "Dong et al. 2022, SphereFed")
