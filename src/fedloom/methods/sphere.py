"""SphereFed (Dong et al., ECCV 2022): features on a sphere, a fixed head with orthonormal rows.

    loss = ce:   cross-entropy of scale * V f / ||f||
    loss = mse:  mean over batch and classes of (V f / ||f|| - onehot(y))^2

V has orthonormal rows, made from the initial head by Gram-Schmidt (so features need at least as many dimensions as
there are classes), and is neither trained nor shared. The factor 1/C inside the mean is why the mean-squared form
needs learning rates of 4.5 to 6.5 where cross-entropy takes 0.3. Default: cross-entropy with scale 1; FedFN's
comparison tried {1, 10, 15, 20, 25, 30} and reports 15 as the best.

The alias `spherefed` is sphere(loss=mse): the SphereFed rows of FedDr+ (whose learning rates 0.55 and 6.5 are those
of the mean square) and those of FedFN that say MSE. FedFN's rows that say CE are `sphere`. Neither paper calibrates.

`calibrate`: closed-form calibration (FFC) after the last round. All clients send two sums over their training
samples, with z = f / ||f|| under the final body; the server solves a ridge regression and serves its solution as the
head:

    V^T = (sum_i Z_i^T Z_i + lambda I)^-1 sum_i Z_i^T Y_i,   lambda = ridge * trace(sum_i Z_i^T Z_i) / d

solved by Cholesky in double precision. The paper prints no lambda; 1e-3 of the mean eigenvalue keeps the system well
posed where features have collapsed. Every client uploads d^2 + d C numbers once; the last round's bytes contain them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext, Query, ServerContext, TaskInfo
from fedloom.methods.api.hyperparameters import Positive
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.api.search import RateScale
from fedloom.nets import Net
from fedloom.nets.layers.heads import FixedHead, orthonormal, weight_of


class Sphere(Part):
    """Normalized features and a fixed head with orthonormal rows."""

    paper = "Dong et al. 2022, SphereFed"
    rate_scale: ClassVar[RateScale | None] = RateScale(
        3, 65, source="Kim et al. 2024: the mean square takes 0.55 and 6.5 where cross-entropy takes 0.01 and 0.1"
    )
    sums = "shares"  # without `calibrate`
    replaces: ClassVar[frozenset[str]] = frozenset({"head"})
    variants: ClassVar[frozenset[str]] = frozenset({"loss", "calibrate"})
    form: Literal["ce", "mse"] = Field("ce", alias="loss")
    """ce (cross-entropy) | mse (mean squared error)"""
    scale: Positive = 1.0
    """factor of the logits of ce"""
    calibrate: bool = False
    """solve the head in closed form after the last round"""
    ridge: Positive = 1e-3
    """regularization of that solution, in units of the mean eigenvalue"""

    def build(self, net: Net, task: TaskInfo) -> Net:
        net.head = FixedHead(orthonormal(weight_of(net.head)))
        return net

    def final_tensors(self) -> tuple[str, ...]:
        return ("head.weight",) if self.calibrate else ()

    def queries(self, weights: Tensor, task: TaskInfo) -> Mapping[str, Query]:
        if not self.calibrate:
            return {}
        d, classes = task.dim, task.classes
        return {"moments": Query(reply={"gram": torch.zeros(d, d), "cross": torch.zeros(d, classes)})}

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # nothing is trained

    def answer(self, query: str, message: Mapping[str, Tensor], client: ClientContext) -> None:
        gram, cross = (torch.zeros_like(client.reply[name], dtype=torch.float64) for name in ("gram", "cross"))
        for batch in client.iterate():
            z = F.normalize(batch.features.double().cpu(), eps=1e-12)  # (B, d)
            gram += z.T @ z
            cross += z.T @ F.one_hot(batch.y.cpu(), cross.shape[1]).double()
        client.reply["gram"], client.reply["cross"] = gram.float(), cross.float()

    def finalize(self, server: ServerContext) -> None:
        if not self.calibrate:
            return
        sums = server.ask("moments")
        gram = (sums["gram"] + sums["gram"].T) / 2
        dim = len(gram)
        ridge = self.ridge * gram.trace() / dim * torch.eye(dim, dtype=gram.dtype)
        factor = torch.linalg.cholesky(gram + ridge)
        server.set_frozen("head.weight", torch.cholesky_solve(sums["cross"], factor).T.float())

    def loss(self, batch: Batch, client: ClientContext) -> Tensor:
        if self.form == "ce":
            return F.cross_entropy(self.scale * batch.logits, batch.y)
        return F.mse_loss(batch.logits, F.one_hot(batch.y, batch.logits.shape[1]).to(batch.logits.dtype))


alias("spherefed", "sphere(loss=mse)", "mean squared error on a fixed orthonormal head", "Dong et al. 2022, SphereFed")
