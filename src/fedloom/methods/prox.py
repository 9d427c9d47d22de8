"""FedProx (Li et al., MLSys 2020): a proximal term keeps clients near the global model.

    L = cross-entropy + (mu/2) ||w - w_g||^2,   so   g <- g + mu (w - w_g)

With `beta` it is the convex mix of FedDr+'s equation 1 instead, L = beta * L_base + (1 - beta) * 1/2 ||w - w_g||^2,
so g <- beta g + (1 - beta)(w - w_g), and mu has no say. L_base is the objective with all penalties that stand before
it in the sum; corrections of other parts (scaffold's controls) are not scaled. The term acts on what is exchanged;
statistics never enter the distance. Its gradient is added in closed form, before momentum, which is what
differentiating the loss would give (only a convex mix that stands after it does not scale it). Default mu = 0.01 as
FedBABU's comparison; FedDr+ uses 0.001, FedNTD's code 1.0.
"""

from __future__ import annotations

from torch import Tensor

from fedloom.methods.method import alias
from fedloom.methods.part import NonNegative, Part, Share
from fedloom.methods.seen import Batch, Client


class Prox(Part):
    """Proximal term: clients stay near the global model."""

    paper = "Li et al. 2020, FedProx"
    mu: NonNegative = 0.01
    beta: Share | None = None

    @property
    def mix(self) -> float | None:
        return self.beta

    def penalty(self, batch: Batch) -> Tensor:
        """The distance itself is in `correct`; this is here to be mixed, so that what stands before it is scaled."""
        return batch.logits.new_zeros(())

    def correct(self, gradient: Tensor, client: Client) -> None:
        pull = self.mu if self.beta is None else 1 - self.beta
        gradient.add_(client.w, alpha=pull).sub_(client.start, alpha=pull)


alias("fedprox", "prox", "FedAvg with a proximal term", "Li et al. 2020, FedProx")
