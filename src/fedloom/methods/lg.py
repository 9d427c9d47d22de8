"""LG-FedAvg (Liang et al., 2020): personal lower layers, shared upper layers.

`shared = head` (default): each client keeps its body and shares the head, as in the paper. `shared = body` is the
reverse, which the authors' CIFAR-10 script really selects; a list of module names shares those (`lg(shared=[body.4,
head])`). The shared tensors count as decided too: no other part may freeze or keep them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from fedloom.errors import FedloomError
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.weights import BEFORE_HEAD, Regions


class LG(Part):
    """Personal lower layers, shared upper ones."""

    paper = "Liang et al. 2020, LG-FedAvg"
    variants: ClassVar[frozenset[str]] = frozenset({"shared"})
    shared: str | tuple[str, ...] = "head"
    """what is shared: head | body | a list of modules"""

    def regions(self, regions: Regions) -> Regions:
        wanted = (self.shared,) if isinstance(self.shared, str) else self.shared
        if not wanted:
            raise FedloomError("method: lg(shared=[]) shares nothing; name at least one module, such as head")
        shared: list[str] = []
        for item in wanted:
            selected = regions.select(*(BEFORE_HEAD if item == "body" else (item,)))
            if not selected:
                raise FedloomError(f"method: lg shares {item}, which this net does not have")
            shared += selected
        trained = [name for name in regions.region if name not in regions.constant]
        kept = [name for name in trained if name not in shared]
        if not kept:
            raise FedloomError("method: lg shares everything that is trained, so nothing is personal; leave it out")
        claimed = regions.keep(*([name for name in shared if name in trained] or shared)).decided
        return replace(regions, decided=claimed).keep(*kept)


alias("lgfedavg", "lg")
