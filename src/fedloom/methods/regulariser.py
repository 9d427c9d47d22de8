"""Regularisers in two forms: added with a weight, or as the convex mix of FedDr+'s equation 1.

    weight:  L = L_base + weight * R
    beta:    L = beta * L_base + (1 - beta) * R

L_base is everything before it in the sum. With beta the weight has no say. beta also rescales the base gradient, that
is, the rate.
"""

from __future__ import annotations

from torch import Tensor

from fedloom.methods.part import NonNegative, Part, Share
from fedloom.methods.seen import Batch


class Regulariser(Part, abstract=True):
    """What the regularisers have in common; a subclass defines `term`."""

    weight: NonNegative = 1.0
    beta: Share | None = None

    @property
    def mix(self) -> float | None:
        return self.beta

    def term(self, batch: Batch) -> Tensor:
        """R of a batch."""
        raise TypeError(f"{self.name} defines no term")

    def penalty(self, batch: Batch) -> Tensor:
        return self.term(batch) if self.beta is not None else self.weight * self.term(batch)
