"""FedAS (Yang et al., CVPR 2024): align the received body with the client's own features, and weigh clients by information.

The claim: two inconsistencies hurt a shared body with personal heads. Within a client, the received body no longer fits the old
head; between clients, one that was seldom asked has learned little and still counts in full. So a client of the cohort

1. takes class means of the features of its own model after its last training (at first: the initial weights), on its data
2. trains the received body for an epoch, before anything else, with the sum over the classes of the batch of
       mean over samples of the class and features of (f - mean_y)^2
   by plain SGD at rate `rate` in batches of `batch`
3. trains this body and its own head for the recipe's epochs
4. uploads the body and F_i = sum over batches of |grad of the batch's cross-entropy|^2, over all its weights

and the server averages bodies with F_i / sum F in place of the recipe's weights. Large F means far from a minimum: clients that
fit their data well count less.

The head stays with the client, as in fedper. A client's own model is the one after its last training, body included; a client
that never took part has the served body and the initial head. F takes the samples in order, in batches of the recipe's size;
it is a sum over batches, as in the code, so clients with more samples have more of it.

Departures: F is taken in training mode without changing statistics, where the code evaluates. In the published code the aligned
body replaces the server's, so that the next client receives it; here each client aligns its own copy. One port aligns means of
batches and reloads the global head. The code also averages the heads, which nobody uses.
Defaults: rate 0.01 and batch 16, the code's. rate = 0 leaves the alignment out, `weigh = false` the weights: both is fedper.
Equal F is a uniform average. Costs two more epochs and 1 M of client state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.api.context import (
    Batch,
    ClientContext,
    Phase,
    ServerContext,
    TaskInfo,
    Tensors,
    TrainSchedule,
    TrainSpec,
)
from fedloom.methods.api.hyperparameters import Count, NonNegative
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span
from fedloom.weights import BEFORE_HEAD, Regions


class FedAS(Part):
    """The received body is aligned with the client's features, and clients are weighed by Fisher information."""

    paper = "Yang et al. 2024, FedAS"
    work = "two passes over the data with gradients, beside training"
    moves_start: ClassVar[bool] = True
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "rate": Span(0.001, 0.1, log=True, source="ours, around the code's 0.01"),
    }
    variants: ClassVar[frozenset[str]] = frozenset({"weigh"})
    rate: NonNegative = 0.01
    """learning rate of the alignment; 0 leaves it out"""
    batch: Count = 16
    """batch size of the alignment"""
    weigh: bool = True
    """weigh clients by Fisher information; false: as the recipe says"""

    def regions(self, regions: Regions) -> Regions:
        return regions.keep("head")

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"own": task.initial, "begun": torch.zeros(1)}

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"information": torch.zeros(1)}

    def before_training(self, client: ClientContext) -> None:
        if self.rate == 0:
            return
        sums = torch.zeros(client.task.classes, client.task.dim, device=client.storage.device)
        for batch in client.iterate():
            sums.index_add_(0, batch.y, client.teacher(batch, "own").features.float())
        means = sums / client.counts.clamp(min=1)[:, None]

        def away(batch: Batch, _: ClientContext) -> Tensor:
            squares = (batch.features - means[batch.y]).square().mean(1)
            counts = torch.bincount(batch.y, minlength=len(means))
            return (squares / counts[batch.y]).sum()

        aligned = client.storage.clone()
        epoch = TrainSchedule(-(-client.samples // self.batch), batch=self.batch, momentum=0.0, weight_decay=0.0)
        # detached: it is no step of the round, and has draws of its own
        client.train(TrainSpec((Phase(1, BEFORE_HEAD),), at=aligned, loss=away, lr=self.rate, schedule=epoch))
        client.storage.copy_(aligned)

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # no step on shared weights

    def after_training(self, client: ClientContext) -> None:
        client.state["own"], client.state["begun"] = client.storage, torch.ones(1)
        information = torch.zeros(1)
        if self.weigh:
            w = client.weights.clone()
            for batch in client.iterate(order=torch.arange(client.samples)):
                gradient = client.gradient_of(_cross_entropy, w, batch, whole=True)
                information += gradient.square().sum().cpu()
        client.upload["information"] = information

    def defines(self, hook: str) -> bool:
        return super().defines(hook) and (hook != "weigh_uploads" or self.weigh)

    def weigh_uploads(self, shares: Sequence[float], server: ServerContext) -> Sequence[float]:
        return [float(information) for information in server.extras("information")]

    def personalize(self, client: ClientContext) -> None:
        if bool(client.state["begun"]):
            client.storage.copy_(client.state["own"])


def _cross_entropy(batch: Batch, _: ClientContext) -> Tensor:
    return F.cross_entropy(batch.logits, batch.y)
