"""Per-FedAvg (Fallah et al., NeurIPS 2020): a start from which one step on a client's own data goes far.

    minimise mean_i F_i(w),   F_i(w) = f_i(w - alpha grad f_i(w))

    w~ = w - alpha grad f_i(w; D),   g = grad f_i(w~; D')
    mode = fo:  w <- w - beta g
    mode = hf:  w <- w - beta (g - alpha [grad f_i(w + delta g; D'') - grad f_i(w - delta g; D'')] / (2 delta))

`fo` leaves the second derivative out; `hf` finds its product with g by a central difference. D walks through the
client's epochs; D' and D'' are drawn independently of it, so a step costs two or four gradients. Before its personal
test a client takes `steps` steps of rate alpha from the global model, each on a batch of its own *training* images
(published comparisons adapt on test images, some of them on another client's). The global model by itself is meant to
be a poor one: look at the personal accuracy.

f_i is the method's loss; what is exchanged is adapted. The outer step is the local loop's: beta is the recipe's rate, with its
schedule, momentum and decay, unless `beta` is given, which is then the rate of every round. The inner step has no
momentum (FedBABU's port runs both through one optimiser, so that its outer step contains the inner gradient).
Statistics of normalisers move with the first of the passes alone.
Defaults: alpha = 0.1, FedBABU's; delta = 0.001, the authors'; first order.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fedloom.methods.part import Count, NonNegative, Part, Positive
from fedloom.methods.seen import Batch, Client


class PerFedAvg(Part):
    """Meta-learns a start from which one step on a client's own data goes far."""

    paper = "Fallah et al. 2020, Per-FedAvg"
    alpha: NonNegative = 0.1
    beta: Positive | None = None
    mode: Literal["fo", "hf"] = "fo"
    delta: Positive = 0.001
    steps: Count = 1

    def gradient(self, client: Client, batch: Batch) -> Tensor:
        w = client.w.clone()
        ahead = w - self.alpha * client.gradient_of(batch=batch)
        g = client.gradient_of(at=ahead, batch=client.another())
        if self.mode == "hf":
            third = client.another()
            up = client.gradient_of(at=w + self.delta * g, batch=third)
            down = client.gradient_of(at=w - self.delta * g, batch=third)
            g = g - self.alpha * (up - down) / (2 * self.delta)
        return g if self.beta is None else g * (self.beta / client.lr)

    def personalise(self, client: Client) -> None:
        for _ in range(self.steps):
            client.w.sub_(client.gradient_of(), alpha=self.alpha)
