"""APFL (Deng et al., 2020): every client mixes a model of its own with the global one, and may learn by how much.

The claim: the best model for a client lies between its own and the global one. After every local step of w_i, on its batch:

    m <- alpha v + (1 - alpha) w_i
    v <- v - eta alpha grad f_i(m)
    alpha <- alpha - eta <v - w_i, grad f_i(m)>, clipped to [0, 1]              if `adaptive`

with w_i as just stepped, v before its step in both lines, and eta the rate of the round. The global stream is not affected: it
has the bits of the same sum without apfl. v takes plain gradient steps, without momentum and decay, on the method's loss
without regularizers. v and alpha are client state: they start from the initial weights and `alpha`, and wait while the client
is absent. Regions that another part keeps personal are not mixed.

The client's model is m with v, alpha and the locally trained w_i of the last round that it took part in, as the paper's
evaluation has it; statistics of normalizers are those of w_i. A client that never took part has the global model.

Departures: weights are mixed; the authors' code mixes logits, the same only for linear models, and moves alpha once a round by
a gradient that is scaled twice and a pull of 0.02 to zero. Ports differ more: one gives v no gradient, one takes it at v in
place of m and overwrites v by m, one steps w_i twice a batch. Defaults: alpha = 0.5, fixed, as the code's.
alpha = 0: v stays and m is w_i; alpha = 1: v is trained alone. A step costs a second gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import Share
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span


class APFL(Part):
    """Every client mixes a model of its own with the global one."""

    paper = "Deng et al. 2020, APFL"
    work = "a second forward and backward pass per step"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "alpha": Span(0.1, 0.9, source="ours; at the ends one of the two models is left out"),
    }
    variants: ClassVar[frozenset[str]] = frozenset({"adaptive"})
    alpha: Share = 0.5
    """share of the client's own model in the mixture; its start if adaptive"""
    adaptive: bool = False
    """every client learns alpha"""

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {
            "v": weights.clone(),
            "alpha": torch.full((1,), self.alpha),
            "mixed": task.initial,  # the whole model m
            "begun": torch.zeros(1),
        }

    def after_step(self, batch: Batch, client: ClientContext) -> None:
        w = client.weights
        v, alpha = (client.state[name].to(w.device) for name in ("v", "alpha"))
        gradient = client.gradient_of(lambda batch, own: own.loss(batch), alpha * v + (1 - alpha) * w, batch)
        slope = torch.dot(v - w, gradient)
        v = v - client.lr * alpha * gradient
        if self.adaptive:
            alpha = (alpha - client.lr * slope).clamp(0, 1)
        # there is no `after_training` that a query of another part would call again, so it is kept step by step
        client.state["v"], client.state["alpha"], client.state["begun"] = v, alpha, torch.ones(1)
        mixed = client.storage.clone()
        mixed[: len(w)] = alpha * v + (1 - alpha) * w
        client.state["mixed"] = mixed

    def personalize(self, client: ClientContext) -> None:
        if bool(client.state["begun"]):
            client.storage.copy_(client.state["mixed"])
