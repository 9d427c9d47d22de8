"""FedDBE (Zhang et al., NeurIPS 2023): the bias of a client's domain is taken out of the features and kept on the client.

The claim: a client's mean feature mixes what all share with what is its own. A personal vector b_i takes over the second, and a
term pulls the mean of the shared features to a common one, so that the averaged model is less biased and still fits clients.

    L = CE(head(f + b_i), y) + kappa * mean over features of 1/2 (m - m_g)^2,   m <- (1 - mu) m + mu * mean of f over the batch

m starts a round at 0 and only its newest term has a gradient; with mu = 1 it is the mean of the batch. b_i starts at 0, is
trained with the body by the same optimizer and never sent; it is a tensor of the net, `head.shift`, so any head will do. m_g is
fixed for the whole run. Before the first round all clients train a round's local work from the initial weights, with the
method's loss alone and b_i = 0; what they learn is discarded, and m_g = sum_i n_i m_i / n with m_i their m at its end. That
costs a pass of all clients, whatever the cohort, and counts in the traffic of round 1.

The global model answers without b_i, a client's own model with it; a client that never took part has b_i = 0.

Defaults: kappa = 50, mu = 1, the authors' script for Fashion-MNIST; their code's own defaults are 0, which turns the term off,
and 0.1, with which m stays near 0 in a round of few batches. kappa = 0 needs no m_g and asks nobody. `bias = false` leaves b_i
out; with kappa = 0 that is FedAvg. With a part that makes several passes in a step, each pass counts in m where mu < 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedloom.methods.api.context import Batch, ClientContext, Query, ServerContext, TaskInfo, Tensors, TrainSpec
from fedloom.methods.api.hyperparameters import NonNegative
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span
from fedloom.nets import Net
from fedloom.weights import Regions


class FedDBE(Part):
    """A personal shift of the features, and a pull of their mean to a common one."""

    paper = "Zhang et al. 2023, FedDBE"
    work = "once, a round's local work of all clients"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "kappa": Span(0.1, 100.0, log=True, source="the authors' script takes 50; less, for larger rates, is ours"),
    }
    builds_last: ClassVar[bool] = True  # the shift goes before whatever head other parts make
    variants: ClassVar[frozenset[str]] = frozenset({"bias"})
    kappa: NonNegative = 50.0
    """weight of the pull of mean features to the common one; 0: none"""
    mu: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of the newest batch in the running mean"""
    bias: bool = True
    """a personal shift of the features"""

    def build(self, net: Net, task: TaskInfo) -> Net:
        if self.bias:
            net.head.register_parameter("shift", nn.Parameter(torch.zeros(net.dim)))
            net.head.register_forward_pre_hook(_shifted)
        return net

    def regions(self, regions: Regions) -> Regions:
        return regions.keep("head.shift") if self.bias else regions

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"mean": torch.zeros(task.dim)} if self.kappa else {}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        return dict(state)

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"mean": torch.zeros(task.dim)} if self.kappa and self.mu < 1 else {}

    def queries(self, weights: Tensor, task: TaskInfo) -> Mapping[str, Query]:
        return {"mean": Query(reply={"sum": torch.zeros(task.dim), "count": torch.zeros(1)})} if self.kappa else {}

    def initialize(self, server: ServerContext) -> None:
        if self.kappa:
            total = server.ask("mean")
            server.state["mean"] = (total["sum"] / total["count"]).float()

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # no step on shared weights

    def answer(self, query: str, message: Mapping[str, Tensor], client: ClientContext) -> None:
        mean = torch.zeros(client.task.dim, device=client.storage.device)

        def loss(batch: Batch, own: ClientContext) -> Tensor:
            mean.mul_(1 - self.mu).add_(batch.features.detach().float().mean(0), alpha=self.mu)
            return own.loss(batch)

        client.train(TrainSpec((client.work,), at=client.storage.clone(), loss=loss, without=("head.shift",)))
        client.reply["sum"], client.reply["count"] = client.samples * mean, torch.tensor([float(client.samples)])

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        if not self.kappa:
            return batch.features.new_zeros(())
        mean = batch.features.mean(0)
        if self.mu < 1:
            mean = self.mu * mean
            if client.steps:
                mean = mean + (1 - self.mu) * client.state["mean"].to(mean.device)
            client.state["mean"] = mean.detach()
        return self.kappa * 0.5 * (mean - client.broadcast["mean"].to(mean.device)).square().mean()


def _shifted(head: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    return (given[0] + head.shift, *given[1:])
