"""FedRep (Collins et al., ICML 2021): shared body, personal head, trained one after the other.

Each round a client first trains its own head for `head_epochs` on the received body, then the body for the recipe's
epochs with that head. Default 10 head epochs, as the authors' CIFAR runs. Momentum starts at zero in each of the two
phases.
"""

from __future__ import annotations

from fedloom.methods.api.context import Phase
from fedloom.methods.api.hyperparameters import Count
from fedloom.methods.api.part import Part
from fedloom.weights import BEFORE_HEAD, Regions


class FedRep(Part):
    """Personal head first, then the shared body."""

    paper = "Collins et al. 2021, FedRep"
    work = "epochs of the head beside those of the body"
    head_epochs: Count = 10
    """epochs of the head before the body"""

    def regions(self, regions: Regions) -> Regions:
        return regions.keep("head")

    def phases(self, epochs: int) -> list[Phase]:
        return [Phase(self.head_epochs, ("head",)), Phase(epochs, BEFORE_HEAD)]
