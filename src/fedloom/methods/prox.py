"""FedProx (Li et al., MLSys 2020): a proximal term keeps clients near the global model.

    L = cross-entropy + (mu/2) ||w - w_g||^2,   so   g <- g + mu (w - w_g)

The term acts on what is exchanged; statistics never enter the distance. Its gradient is added in closed form, before
momentum, which is what differentiating the loss would give.
Default mu = 0.01 as FedBABU's comparison; FedDr+ uses 0.001, FedNTD's code 1.0.
"""

from __future__ import annotations

from torch import Tensor

from fedloom.methods.method import alias
from fedloom.methods.part import NonNegative, Part
from fedloom.methods.seen import Client


class Prox(Part):
    """Proximal term: clients stay near the global model."""

    paper = "Li et al. 2020, FedProx"
    mu: NonNegative = 0.01

    def correct(self, gradient: Tensor, client: Client) -> None:
        gradient.add_(client.w, alpha=self.mu).sub_(client.start, alpha=self.mu)


alias("fedprox", "prox", "FedAvg with a proximal term", "Li et al. 2020, FedProx")
