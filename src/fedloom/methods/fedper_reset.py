"""FedPer as the released code of FedBABU runs it: the trained head is discarded in every round.

Clients train body and head together from the received body and the common initial head; bodies are averaged, and no head is
kept, neither by a client nor by the server. The published rows of FedPer in the tables of FedBABU, FedFN and FedDr+ come from
this code, after fine-tuning. The method of the paper is `fedper`, whose clients keep their heads.

The head travels with the body, and the server puts the initial one back after every average.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from fedloom.methods.api.context import ServerContext, TaskInfo, Tensors
from fedloom.methods.api.part import Part
from fedloom.weights import Regions


class FedPerReset(Part):
    """FedPer as in FedBABU's code: heads are trained and discarded every round."""

    name: ClassVar[str] = "fedper-reset"
    paper = "Oh et al. 2022, FedBABU's code"

    def regions(self, regions: Regions) -> Regions:
        """The head stays shared; no other part may freeze or keep it."""
        return replace(regions, decided=regions.keep("head").decided)

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"initial": weights.clone()}

    def after_aggregation(self, server: ServerContext) -> None:
        # the head is the last region of the shared weights
        size = sum(tensor.numel() for name, tensor in server.tensors().items() if name.startswith("head."))
        if size:
            server.weights[-size:].copy_(server.state["initial"][-size:])
