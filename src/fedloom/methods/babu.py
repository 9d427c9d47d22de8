"""FedBABU (Oh et al., ICLR 2022): train and share only the body; the head stays as drawn.

The claim: a head that is trained with the body hurts personalisation; a random, fixed head with nearly orthogonal rows
guides all clients to the same features, and fine-tuning it later personalises fast.
The head (weight and bias, default initialisation) is neither trained nor shared, so it never enters updates, controls,
distances or traffic. Fine-tuning (`personalize`) may train it.
"""

from __future__ import annotations

from fedloom.methods.method import alias
from fedloom.methods.part import Part
from fedloom.weights import Regions


class Babu(Part):
    """Body aggregation only: the head stays as drawn until fine-tuning."""

    paper = "Oh et al. 2022, FedBABU"

    def regions(self, regions: Regions) -> Regions:
        return regions.freeze("head")


alias("fedbabu", "babu", "train and share the body, the head stays as drawn", "Oh et al. 2022, FedBABU")
