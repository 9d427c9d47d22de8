"""No federation: every client trains alone and keeps everything; a lower reference for any federation.

Add a head for the variants of FedDr+: `local`, `local + dr` (dot-regression). A client trains only in the rounds that
sample it; with `--fraction 1` every client trains in every round. The server's model stays at its initialization.
"""

from __future__ import annotations

from typing import ClassVar

from fedloom.methods.api.part import Part
from fedloom.weights import Regions


class Local(Part):
    """Every client trains alone; nothing is shared."""

    paper = "reference point"
    shares: ClassVar[bool] = False

    def regions(self, regions: Regions) -> Regions:
        trained = [name for name in regions.region if name not in regions.constant]
        return regions.keep(*trained)
