"""LG-FedAvg (Liang et al., 2020): local representations below, a shared model above.

`shared = head` (default): each client keeps its body and shares the head, as the paper says. `shared = body` is the
other way round, which is what the authors' CIFAR-10 script really selects; a list of module names shares those
(`lg(shared=[body.4, head])`).
"""

from __future__ import annotations

from fedloom.errors import FedloomError
from fedloom.methods.method import alias
from fedloom.methods.part import Part
from fedloom.weights import Regions


class LG(Part):
    """Personal lower layers, shared upper ones."""

    paper = "Liang et al. 2020, LG-FedAvg"
    shared: str | tuple[str, ...] = "head"

    def regions(self, regions: Regions) -> Regions:
        wanted = (self.shared,) if isinstance(self.shared, str) else self.shared
        wanted = tuple(name for item in wanted for name in (("body", "norm") if item == "body" else (item,)))
        shared = set(regions.select(*wanted))
        if not shared:
            raise FedloomError(f"method: lg shares {', '.join(wanted)}, which this net does not have")
        kept = [name for name in regions.region if name not in shared and name not in regions.constant]
        if not kept:
            raise FedloomError("method: lg shares everything, so nothing is personal; that is fedavg")
        return regions.keep(*kept)


alias("lgfedavg", "lg", "personal body, shared head", "Liang et al. 2020, LG-FedAvg")
