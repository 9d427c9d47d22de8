"""FedProto (Tan et al., AAAI 2022): clients exchange class prototypes; models are never averaged.

    client:  L = cross-entropy + weight * mean over batch and dimensions of (f(x) - P_y)^2
    sent:    p_i,c = mean of f over the client's samples of class c, with the weights after local training
    server:  P_c <- mean over the clients of the round that hold class c of p_i,c

Every client keeps its whole model. P_c without any holder in a round keeps its value; a class that nobody has sent yet has no
prototype and no term, so the first round is local training. Prototypes are averaged without weights, as in the authors' code;
the paper (as we recall it) weighs them by samples and divides by the number of clients once more, which shrinks them.

Departures: the authors' code averages the features that the net made in training mode during the last epoch; here, as in the
paper's definition, prototypes are those of the trained model, in evaluation mode. Their test accuracies are running means over
clients, which are not reset.

A client's own model classifies by the nearest prototype among the classes that it holds samples of and that have a prototype;
with none of these, by its head. Since ||f - P_c||^2 = ||f||^2 - (2 P_c . f - ||P_c||^2), that is a linear head with weights 2
P_c and biases -||P_c||^2, which is what `personalize` puts in place; fine-tuning starts from it. So the net needs a linear
head with a bias, and heads of other parts are refused by name. A client that never took part has its initial model and the
others' prototypes. The server's model stays at its initialization.

Prototypes need features of one dimension. The paper exchanges them between different nets; here all clients of a run have the
same net, so features cannot differ in kind. The server learns which classes a client holds, and their mean features. Defaults:
weight 1 (authors: 0.1 for CIFAR-10). weight = 0 trains as `local`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.methods.api.context import Batch, ClientContext, ServerContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import NonNegative
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span
from fedloom.nets import Net
from fedloom.weights import Regions

NEVER = -1e9  # the bias of a class that is no candidate


class FedProto(Part):
    """Clients exchange class prototypes instead of weights."""

    paper = "Tan et al. 2022, FedProto"
    work = "a forward pass of all samples per round"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "weight": Span(0.1, 10.0, log=True, source="the authors take 0.1 and 1; a decade around 1"),
    }
    shares: ClassVar[bool] = False
    builds_last: ClassVar[bool] = True
    sums = "equal"
    weight: NonNegative = 1.0
    """weight of the distance to prototypes; 0 trains as local"""

    def build(self, net: Net, task: TaskInfo) -> Net:
        if type(net.head) is not nn.Linear or net.head.bias is None:
            raise FedloomError(
                f"a client's own model reads features by prototypes in place of a linear head with a bias, and this head "
                f"is a {type(net.head).__name__}; leave the part that replaces the head out, or choose another model"
            )
        return net

    def regions(self, regions: Regions) -> Regions:
        return regions.keep(*(name for name in regions.region if name not in regions.constant))

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"prototypes": torch.zeros(task.classes, task.dim), "known": torch.zeros(task.classes)}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        return {name: state[name] for name in ("prototypes", "known")}

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"prototypes": torch.zeros(task.classes, task.dim), "held": torch.zeros(task.classes)}

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        prototypes, known = (client.broadcast[name].to(batch.y.device) for name in ("prototypes", "known"))
        away = (batch.features - prototypes[batch.y]) * known[batch.y][:, None]
        return self.weight * away.square().mean()

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # nothing is trained

    def after_training(self, client: ClientContext) -> None:
        totals = torch.zeros_like(client.upload["prototypes"], dtype=torch.float64)
        for batch in client.iterate():
            totals.index_add_(0, batch.y.cpu(), batch.features.double().cpu())
        counts = client.counts.double().cpu()
        client.upload["prototypes"] = (totals / counts.clamp(min=1)[:, None]).float()
        client.upload["held"] = (counts > 0).float()

    def after_aggregation(self, server: ServerContext) -> None:
        total, holders = torch.zeros_like(server.state["prototypes"]), torch.zeros_like(server.state["known"])
        for prototypes, held in zip(server.extras("prototypes"), server.extras("held"), strict=True):
            total.add_(prototypes)
            holders.add_(held)
        anew = holders > 0.5
        means = total / holders.clamp(min=1)[:, None]
        server.state["prototypes"] = torch.where(anew[:, None], means, server.state["prototypes"])
        server.state["known"] = torch.where(anew, 1.0, server.state["known"])

    def personalize(self, client: ClientContext) -> None:
        head = client.named(client.storage)
        device = client.storage.device
        prototypes, known = (client.broadcast[name].to(device) for name in ("prototypes", "known"))
        candidates = (client.counts.to(device) > 0) & (known > 0)
        if not candidates.any():
            return
        head["head.weight"].copy_(2 * prototypes)
        head["head.bias"].copy_(torch.where(candidates, -prototypes.square().sum(1), NEVER))
