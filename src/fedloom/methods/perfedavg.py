"""Per-FedAvg (Fallah et al., NeurIPS 2020): meta-learn an initialization that one step on a client's data improves a lot.

    minimize mean_i F_i(w),   F_i(w) = f_i(w - alpha grad f_i(w))

    w~ = w - alpha grad f_i(w; D),   g = grad f_i(w~; D')
    mode = fo:  w <- w - beta g
    mode = hf:  w <- w - beta (g - alpha [grad f_i(w + delta g; D'') - grad f_i(w - delta g; D'')] / (2 delta))

`fo` (first order) omits the second derivative; `hf` (Hessian-free) approximates its product with g by a central
difference. D iterates over the client's epochs; D' and D'' are sampled independently, so a step costs two or four
gradients. Before personal evaluation a client takes `steps` steps of rate alpha from the global model, each on a
batch of its own *training* samples (published comparisons adapt on test samples, some of them on another client's).
The global model itself is not meant to be good: look at the personal accuracy.

f_i is the method's loss; the shared weights are adapted. The outer step is the local loop's: beta is the recipe's
learning rate, with its schedule, momentum and decay, unless `beta` is given, which then holds in every round. The
inner step has no momentum (FedBABU's port runs both through one optimizer, so that its outer step contains the inner
gradient). Only the first of the passes updates statistics of normalizers.
Defaults: alpha = 0.1, FedBABU's; delta = 0.001, the authors'; first order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Tensor

from fedloom.errors import FedloomError
from fedloom.methods.api.context import Batch, ClientContext, RunPlan
from fedloom.methods.api.hyperparameters import Count, NonNegative, Positive
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span


class PerFedAvg(Part):
    """Meta-learning: one gradient step on a client's data personalizes the global model."""

    paper = "Fallah et al. 2020, Per-FedAvg"
    work = "one more gradient per step (fo), or three more (hf)"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "alpha": Span(
            0.001, 1.0, log=True, source="ours, around the 0.1 of Oh et al. 2022; other codes take 0.001 and 0.01"
        )
    }
    alpha: NonNegative = 0.1
    """rate of the inner step"""
    beta: Positive | None = None
    """rate of the outer step; null: the recipe's"""
    mode: Literal["fo", "hf"] = "fo"
    """fo (first order) | hf (Hessian-free)"""
    delta: Positive = 0.001
    """step of the central difference of hf"""
    steps: Count = 1
    """steps that personalize the global model"""

    def check(self, plan: RunPlan) -> None:
        if self.beta is not None and plan.optimizer != "sgd":
            raise FedloomError(
                f"beta scales the gradient to a rate of its own, which has no effect on the steps of {plan.optimizer}; "
                f"leave beta out, or set optimizer.name to sgd"
            )

    def gradient(self, batch: Batch, client: ClientContext) -> Tensor:
        w = client.weights.clone()
        ahead = w - self.alpha * client.gradient_of(batch=batch)
        g = client.gradient_of(at=ahead, batch=client.draw_batch())
        if self.mode == "hf":
            third = client.draw_batch()
            up = client.gradient_of(at=w + self.delta * g, batch=third)
            down = client.gradient_of(at=w - self.delta * g, batch=third)
            g = g - self.alpha * (up - down) / (2 * self.delta)
        return g if self.beta is None else g * (self.beta / client.lr)

    def personalize(self, client: ClientContext) -> None:
        for _ in range(self.steps):
            client.weights.sub_(client.gradient_of(), alpha=self.alpha)
