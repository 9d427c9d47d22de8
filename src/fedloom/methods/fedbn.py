"""FedBN (Li et al., ICLR 2021): normalizers stay with their client.

Scale, shift and statistics of every feature normalizer are trained and kept by each client; everything else is
FedAvg. Each client is evaluated with its own normalizers (personal accuracy). The server, and a client that never
took part, have them at initialization.
"""

from __future__ import annotations

from fedloom.methods.api.part import Part
from fedloom.weights import Regions


class FedBN(Part):
    """Normalizers are personal, the rest is shared."""

    paper = "Li et al. 2021, FedBN"

    def regions(self, regions: Regions) -> Regions:
        return regions.keep("norm")
