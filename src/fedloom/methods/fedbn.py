"""FedBN (Li et al., ICLR 2021): normalisers stay with their client.

Scale, shift and statistics of every feature normaliser are trained and kept by each client; everything else is
FedAvg. Each client is tested with its own normalisers (personal accuracy); one that never took part has them as
drawn, and so has the server.
"""

from __future__ import annotations

from fedloom.methods.part import Part
from fedloom.weights import Regions


class FedBN(Part):
    """Normalisers are personal, the rest is shared."""

    paper = "Li et al. 2021, FedBN"

    def regions(self, regions: Regions) -> Regions:
        return regions.keep("norm")
