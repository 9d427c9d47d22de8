"""FedProx (Li et al., MLSys 2020): a proximal term keeps clients near the global model.

    L = cross-entropy + (mu/2) ||w - w_g||^2,   so   g <- g + mu (w - w_g)

With `beta` it is the convex mix of FedDr+'s equation 1 instead, L = beta * L_base + (1 - beta) * 1/2 ||w - w_g||^2,
so g <- beta g + (1 - beta)(w - w_g), and mu is ignored. L_base is the loss with all regularizers before it in the
sum; corrections of other parts (scaffold's controls) are not scaled. The term acts on the shared weights; statistics
never enter the distance. Its gradient is added in closed form, before momentum, which equals differentiating the loss
(except that a convex mix later in the sum does not scale it). Default mu = 0.01 as in FedBABU's comparison; FedDr+
uses 0.001, FedNTD's code 1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import NonNegative, Share
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.api.search import Range, Span


class Prox(Part):
    """Proximal term: clients stay near the global model."""

    paper = "Li et al. 2020, FedProx"
    work = "one to three vector operations per step"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "mu": Span(0.001, 1.0, log=True, source="Li et al. 2020 try 0.001, 0.01, 0.1 and 1")
    }
    mu: NonNegative = 0.01
    """strength of the proximal term; 0 is FedAvg"""
    beta: Share | None = None
    """share of the loss in a convex mix, in place of mu; null: added"""

    def mix_share(self) -> float | None:
        return self.beta

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        """Zero: the distance is in `correct_gradient`. Being mixed, it scales all terms before it."""
        return batch.logits.new_zeros(())

    def correct_gradient(self, gradient: Tensor, client: ClientContext) -> None:
        pull = self.mu if self.beta is None else 1 - self.beta
        gradient.add_(client.weights, alpha=pull).sub_(client.global_weights, alpha=pull)


alias("fedprox", "prox")
