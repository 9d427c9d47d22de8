"""FedPer (Arivazhagan et al., 2019): shared body, personal head, trained together.

Each client keeps its head between rounds; a client that never took part has the initial head.
"""

from __future__ import annotations

from fedloom.methods.api.part import Part
from fedloom.weights import Regions


class FedPer(Part):
    """Shared body, personal head, trained together."""

    paper = "Arivazhagan et al. 2019, FedPer"

    def regions(self, regions: Regions) -> Regions:
        return regions.keep("head")
