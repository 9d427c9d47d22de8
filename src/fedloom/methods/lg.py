"""LG-FedAvg (Liang et al., 2020): local representations below, a shared model above.

`shared = head` (default): each client keeps its body and shares the head, as the paper says. `shared = body` is the
other way round, which is what the authors' CIFAR-10 script really selects; a list of module names shares those
(`lg(shared=[body.4, head])`). What is shared is decided as well: no other part may freeze or keep it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from fedloom.errors import FedloomError
from fedloom.methods.method import alias
from fedloom.methods.part import Part
from fedloom.weights import Regions


class LG(Part):
    """Personal lower layers, shared upper ones."""

    paper = "Liang et al. 2020, LG-FedAvg"
    variants: ClassVar[frozenset[str]] = frozenset({"shared"})
    shared: str | tuple[str, ...] = "head"

    def regions(self, regions: Regions) -> Regions:
        wanted = (self.shared,) if isinstance(self.shared, str) else self.shared
        if not wanted:
            raise FedloomError("method: lg(shared=[]) shares nothing; name at least one module, such as head")
        shared: list[str] = []
        for item in wanted:
            found = regions.select(*(("body", "norm") if item == "body" else (item,)))
            if not found:
                raise FedloomError(f"method: lg shares {item}, which this net does not have")
            shared += found
        trained = [name for name in regions.region if name not in regions.constant]
        kept = [name for name in trained if name not in shared]
        if not kept:
            raise FedloomError("method: lg shares everything that is trained, so nothing is personal; leave it out")
        claimed = regions.keep(*([name for name in shared if name in trained] or shared)).decided
        return replace(regions, decided=claimed).keep(*kept)


alias("lgfedavg", "lg", "personal body, shared head", "Liang et al. 2020, LG-FedAvg")
