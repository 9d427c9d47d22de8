"""No federation: every client trains alone and keeps everything. The reference point that any federation has to beat.

Combine it with a head to have the variants of FedDr+: `local`, `local + dr` (dot-regression). A client trains only in
the rounds it is drawn for; with `--fraction 1` every client trains in every round. The server's model stays as drawn.
"""

from __future__ import annotations

from typing import ClassVar

from fedloom.methods.part import Part
from fedloom.weights import Regions


class Local(Part):
    """Every client trains alone; nothing is shared."""

    paper = "reference point"
    exchanges: ClassVar[bool] = False

    def regions(self, regions: Regions) -> Regions:
        trained = [name for name in regions.region if name not in regions.constant]
        return regions.keep(*trained)
