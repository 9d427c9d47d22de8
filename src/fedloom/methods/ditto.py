"""Ditto (Li et al., ICML 2021): beside the global model, every client trains a personal model that is tied to it.

    v_i <- v_i - eta (grad f_i(v_i) + strength (v_i - w^t))

w^t is the broadcast of the round. The global model is not affected: it has the bits of the same sum without ditto.
The personal model (all weights and statistics) is client state. It starts from the initialization, is trained in the
rounds that the client takes part in, and is never uploaded. It uses the same local loop (learning rate, momentum,
decay, batches) with random draws of its own. f_i is the method's loss; corrections of the global stream (scaffold,
prox) do not apply. What the method freezes is frozen in v_i as well (babu); regions that another part keeps personal
are trained without the tie.

Personal accuracy is that of v_i. A client that never took part has no v_i and is evaluated with the global model.
`strength` 0: every client trains alone; large: v_i stays at w^t (strength * eta must be below 2, or below 2 (1 +
momentum) with momentum, else the pull overshoots). `epochs` and `lr` of the personal model default to the recipe's.
Default strength = 1; the authors try 0.1, 1 and 2. FedBABU's port ties v_i to the locally trained w, averages the v_i
and overwrites them with the average; none of this is done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import ClientContext, Phase, TaskInfo, Tensors, TrainSpec
from fedloom.methods.api.hyperparameters import Count, NonNegative, Positive
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span


class Ditto(Part):
    """Every client also trains a personal model that is tied to the global one."""

    paper = "Li et al. 2021, Ditto"
    work = "a second training, of the personal model"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "strength": Span(0.1, 2.0, log=True, source="Li et al. 2021 try 0.1, 1 and 2")
    }
    strength: NonNegative = 1.0
    """pull of the personal model to the global one; 0: every client trains alone"""
    epochs: Count | None = None
    """epochs of the personal model; null: the recipe's"""
    lr: Positive | None = None
    """learning rate of the personal model; null: the recipe's"""

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"own": task.initial, "begun": torch.zeros(1)}

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # no step on shared weights

    def after_training(self, client: ClientContext) -> None:
        v = client.state["own"]
        phase = Phase(self.epochs) if self.epochs else client.work
        client.train(TrainSpec((phase,), lr=self.lr, at=v, correction=self._pull))
        client.state["begun"] = torch.ones(1)

    def _pull(self, gradient: Tensor, client: ClientContext) -> None:
        gradient.add_(client.weights, alpha=self.strength).sub_(client.global_weights, alpha=self.strength)

    def personalize(self, client: ClientContext) -> None:
        begun = client.state["begun"].to(client.storage.device) > 0
        client.storage.copy_(torch.where(begun, client.state["own"].to(client.storage.device), client.storage))
