"""Ditto (Li et al., ICML 2021): beside the global model, every client keeps a model of its own, tied to it.

    v_i <- v_i - eta (grad f_i(v_i) + strength (v_i - w^t))

w^t is what the round broadcast. The global stream is untouched: it is to the bit that of the same sum without ditto. The
personal vector (all weights and statistics) lies in the client's memory, begins as drawn, is trained in the rounds that
the client takes part in, and is never uploaded. It goes through the same local loop (rate, momentum, decay, batches) with
draws of its own. f_i is the method's loss; corrections for the global stream (scaffold, prox) have no say in it. What the
method freezes is frozen in v_i as well (babu); regions that another part keeps are trained, and not tied to anything.

Personal accuracy is that of v_i. A client that never took part has no v_i and is tested with the global model.
`strength` 0: every client trains alone; large: v_i stays at w^t (strength * eta must stay below 2, or below 2 (1 + momentum)
with momentum, else the pull overshoots). `epochs` and `lr` of the personal vector are the recipe's unless given. Default
strength = 1; the authors try 0.1, 1 and 2. FedBABU's port ties v_i to the locally trained w, averages the v_i and
overwrites them with the average; none of it is here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.methods.part import Count, NonNegative, Part, Positive
from fedloom.methods.seen import Client, Memory, Task


class Ditto(Part):
    """Every client also trains a model of its own, tied to the global one."""

    paper = "Li et al. 2021, Ditto"
    strength: NonNegative = 1.0
    epochs: Count | None = None
    lr: Positive | None = None

    def client_memory(self, w: Tensor, task: Task) -> Memory:
        return {"own": task.initial, "begun": torch.zeros(1)}

    def further(self, hook: str) -> tuple[()]:
        return ()  # no step on what is shared

    def finish(self, client: Client) -> None:
        v = client.memory["own"]
        client.train(self.epochs or client.epochs, lr=self.lr, at=v, correct=self._pull)
        client.memory["begun"] = torch.ones(1)

    def _pull(self, gradient: Tensor, client: Client) -> None:
        gradient.add_(client.w, alpha=self.strength).sub_(client.start, alpha=self.strength)

    def personalise(self, client: Client) -> None:
        begun = client.memory["begun"].to(client.whole.device) > 0
        client.whole.copy_(torch.where(begun, client.memory["own"].to(client.whole.device), client.whole))
