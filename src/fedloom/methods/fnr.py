"""FNR-FL (2024): the least accurate clients train once more, with feature norms regularized towards those of the others.

After local training every client uploads its accuracy A_i and its class means of feature norms F_i[l]. The floor(p
|S|) least accurate clients are asked to train for some more epochs before aggregation; the others are the reference:

    t_l = mean of F_m[l] over reference clients that hold class l,   m_l = mean ||f(x)||_2 over the batch's samples of class l
    L = the method's loss + strength * sum_l rho_l r_l^2,   rho_l = share of class l in the batch
    r_l = (m_l - t_l) / max(m_l, t_l)   (bounded=false: (m_l - t_l) / t_l)

Classes that are absent from the batch or from the references are left out. This is a corrected, differentiable form:
the printed regularizer, strength * sum_l rho_l Delta_j[l] with Delta_j[l] = sum_m (F_m[l] - F_j[l]), is computed from
detached numbers, so it adds a constant to the loss and its gradient is zero; and the published code takes norms,
selects clients and trains the extra epochs on the test set that it reports.

The square of m_l / t_l - 1 is unbounded where norms exceed the reference, and so is its gradient: at the paper's
learning rate 0.1, extra epochs of a LeNet on CIFAR-10 end in weights that are not finite. `bounded` (ours, default)
divides by the larger of the two: the same square below the reference, the same curvature at it, never above 1, and a
gradient in the logarithm of the norm that is never above 1/2.

`mode = private` (default): norms, accuracies and extra epochs use the client's own training samples.
`mode = public`: they use labeled public samples (`data.public`). For a fair comparison, give the same samples to every method
with `data.public_to_clients`.
`mode = held`: they use the validation samples (`data.validation`), never test samples.
`mode = as_published`: as `held`, with the constant in place of the regularizer: extra cross-entropy epochs and nothing else.

Defaults from the paper: half of the clients, 5 extra epochs, strength 1. The extra epochs start with zero momentum
buffers. With strength 0 and private data it is FedAvg with more epochs for the weakest clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.errors import FedloomError
from fedloom.methods.api.context import (
    Batch,
    ClientContext,
    Data,
    Loss,
    Phase,
    Query,
    RunPlan,
    ServerContext,
    TaskInfo,
    Tensors,
    TrainSpec,
)
from fedloom.methods.api.hyperparameters import Count, NonNegative, Share
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.api.search import Range, Span


class FNR(Part):
    """The least accurate clients train again, with feature norms regularized towards the others'."""

    paper = "FNR-FL 2024"
    work = "a pass over the data per round, and extra epochs of some clients"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "strength": Span(0.1, 10.0, log=True, source="a decade around the default of 1")
    }
    share: Share = 0.5
    """share of the cohort that trains again"""
    epochs: Count = 5
    """extra epochs"""
    strength: NonNegative = 1.0
    """weight of the regularizer; 0: extra epochs alone"""
    bounded: bool = True
    """a form of the regularizer whose gradient is bounded"""
    mode: Literal["private", "public", "held", "as_published"] = "private"
    """samples of norms and extra epochs: private | public | held | as_published"""

    @property
    def data(self) -> Data:
        if self.mode == "private":
            return "own"
        return "public" if self.mode == "public" else "held"

    def check(self, plan: RunPlan) -> None:
        if self.mode in ("held", "as_published") and not plan.task.held:
            raise FedloomError(
                f"mode={self.mode} works on samples that are held back; set data.validation above 0, from pool"
            )
        if self.mode == "public" and not plan.task.labeled:
            raise FedloomError("mode=public works on public samples with labels; set data.public above 0")

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"norms": torch.zeros(task.classes), "counts": torch.zeros(task.classes), "accuracy": torch.zeros(1)}

    def queries(self, weights: Tensor, task: TaskInfo) -> Mapping[str, Query]:
        return {"refine": Query(message={"target": torch.zeros(task.classes)}, trains=True)}

    def extra_training(self, hook: Literal["after_training", "answer"]) -> Sequence[tuple[int, Data]]:
        return [(self.epochs, self.data)] if hook == "answer" else ()

    def after_training(self, client: ClientContext) -> None:
        sums = torch.zeros_like(client.upload["norms"])
        counts = torch.zeros_like(sums)
        hits = torch.zeros(1)
        for batch in client.iterate(self.data):
            of_class = F.one_hot(batch.y, len(sums)).to(sums.dtype)  # (B, C)
            sums += torch.linalg.vector_norm(batch.features, dim=1) @ of_class
            counts += of_class.sum(0)
            hits += (batch.logits.argmax(1) == batch.y).sum()
        client.upload["norms"] = sums / counts.clamp(min=1)
        client.upload["counts"] = counts
        client.upload["accuracy"] = hits / counts.sum()

    def after_uploads(self, server: ServerContext) -> None:
        accuracy = torch.cat(list(server.extras("accuracy")))
        count = int(self.share * len(accuracy))
        order = accuracy.sort(stable=True).indices.tolist()
        weakest = sorted(order[:count])
        if not weakest:
            return
        norms, held = torch.stack(list(server.extras("norms"))), torch.stack(list(server.extras("counts"))) > 0
        reference = sorted(order[count:])
        target = _mean(norms[reference], held[reference]) if reference else torch.zeros(norms.shape[1])
        server.ask("refine", {"target": target}, [server.cohort[i] for i in weakest])

    def answer(self, query: str, message: Mapping[str, Tensor], client: ClientContext) -> None:
        target = message["target"].to(client.weights.device)
        honest = self.mode != "as_published" and self.strength > 0
        distance: Loss | None = (lambda batch, _: self._distance(batch, target)) if honest else None
        client.train(TrainSpec((Phase(self.epochs),), data=self.data, regularizer=distance))

    def _distance(self, batch: Batch, target: Tensor) -> Tensor:
        """strength * sum_l rho_l r(m_l, t_l)^2."""
        of_class = F.one_hot(batch.y, len(target)).to(batch.features.dtype)
        counts = of_class.sum(0)
        norms: Tensor = torch.linalg.vector_norm(batch.features, dim=1)
        mean = norms @ of_class / counts.clamp(min=1)
        known = ((counts > 0) & (target > 0)).to(mean.dtype)
        scale = torch.where(target > 0, target, torch.ones_like(target))
        r = (mean - target) / torch.maximum(mean, scale) if self.bounded else mean / scale - 1
        return self.strength * (counts / len(batch.y) * known * r.square()).sum()


def _mean(norms: Tensor, held: Tensor) -> Tensor:
    """Column means over the clients that hold the class; 0 where none does."""
    return (norms * held).sum(0) / held.sum(0).clamp(min=1)


alias("fnrfl", "fnr")
