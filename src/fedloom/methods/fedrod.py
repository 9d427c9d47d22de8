"""Fed-RoD (Chen & Chao, ICLR 2022): a generic head under a balanced loss, and a personal head on top of it.

The claim: one model can serve both aims. Clients train the shared model with a loss that is balanced over classes, which makes
the average a good generic model, and beside it a personal head that learns only what the client's own data add.

    L = CE(z + gamma log n, y) + CE(sg(z) + P sg(f), y)

z = G f are the generic logits, n the client's class counts (balanced softmax), sg stops gradients. The first term trains body
and generic head G, which are shared; the second trains the personal head P alone, which stays on the client. A class without
samples has log n = -infinity and is left out of the client's balanced softmax.

The generic model answers with z. A client's own model answers with z + P f, which for linear heads is the head G + P: its
personal accuracy, and where fine-tuning starts. A client that never took part has P = 0, so both are the same.

P is part of the net (`head.personal`), so the recipe's optimizer trains it in the same steps. It starts at zero; ports copy the
generic head, which doubles the logits at first. gamma = 0 is the plain loss, and so are equal counts of all classes: the
generic model is then FedAvg's. Default gamma = 1. Departures: the paper's text and code could not be read, so the equations are
those that ports agree on; the hypernetwork that makes P from class frequencies is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.methods.api.context import Batch, ClientContext, TaskInfo
from fedloom.methods.api.hyperparameters import NonNegative
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span
from fedloom.nets import Net
from fedloom.weights import Regions

PERSONAL = "head.personal"


class FedRoD(Part):
    """A generic head under a balanced loss is shared; a personal head on top of it is not."""

    paper = "Chen & Chao 2022, Fed-RoD"
    work = "a second head"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "gamma": Span(0.25, 2.0, log=True, source="ours, around the 1 of the equations"),
    }
    replaces: ClassVar[frozenset[str]] = frozenset({"head"})
    gamma: NonNegative = 1.0
    """strength of the balance by class counts; 0: the plain loss"""

    def build(self, net: Net, task: TaskInfo) -> Net:
        if type(net.head) is not nn.Linear or not net.head.weight.requires_grad:
            raise FedloomError(
                f"the personal head goes on top of a linear head that is trained, and this head is a "
                f"{type(net.head).__name__}; choose a model with a linear head"
            )
        personal = nn.Linear(net.head.in_features, net.head.out_features, bias=net.head.bias is not None)
        for parameter in personal.parameters():
            nn.init.zeros_(parameter)
        net.head.add_module("personal", personal)  # the generic head's forward pass does not use it
        return net

    def regions(self, regions: Regions) -> Regions:
        return regions.keep(PERSONAL)

    def loss(self, batch: Batch, client: ClientContext) -> Tensor:
        z, counts = batch.logits, client.counts
        prior = torch.where(counts > 0, self.gamma * counts.clamp(min=1).log(), -torch.inf) if self.gamma else 0.0
        added = batch.module(PERSONAL, batch.features.detach())
        return F.cross_entropy(z + prior, batch.y) + F.cross_entropy(z.detach() + added, batch.y)

    def personalize(self, client: ClientContext) -> None:
        tensors = client.named(client.storage)
        for name, own in tensors.items():
            if name.startswith(f"{PERSONAL}."):
                tensors[f"head.{name.removeprefix(PERSONAL + '.')}"].add_(own)
                own.zero_()
