"""FedBABU (Oh et al., ICLR 2022): train and share only the body; the head keeps its initialization.

The claim: a head that is trained with the body hurts personalization. A random, fixed head with nearly orthogonal
rows guides all clients to the same features, and fine-tuning it later personalizes fast. The head (weight and bias,
default initialization) is neither trained nor shared, so it is not part of updates, controls, distances or traffic.
Fine-tuning (`personalize`) may train it.
"""

from __future__ import annotations

from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.weights import Regions


class Babu(Part):
    """Only the body is trained and shared; the head keeps its initialization until fine-tuning."""

    paper = "Oh et al. 2022, FedBABU"

    def regions(self, regions: Regions) -> Regions:
        return regions.freeze("head")


alias("fedbabu", "babu")
