"""Regularizers in two forms: added with a weight, or as the convex mix of FedDr+'s equation 1.

    weight:  L = L_base + weight * R
    beta:    L = beta * L_base + (1 - beta) * R

L_base is everything before it in the sum. With beta the weight is ignored. beta also rescales the base gradient, that
is, the learning rate.
"""

from __future__ import annotations

from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import NonNegative, Share
from fedloom.methods.api.part import Part


class Regularizer(Part, abstract=True):
    """What the regularizers have in common; a subclass defines `term`."""

    weight: NonNegative = 1.0
    """weight of the term"""
    beta: Share | None = None
    """share of the loss in a convex mix, in place of weight; null: added"""

    def mix_share(self) -> float | None:
        return self.beta

    def term(self, batch: Batch, client: ClientContext) -> Tensor:
        """R of a batch."""
        raise TypeError(f"{self.name} defines no term")

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        return self.term(batch, client) if self.beta is not None else self.weight * self.term(batch, client)
