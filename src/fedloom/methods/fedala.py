"""FedALA (Zhang et al., AAAI 2023): before training, each client learns how much of the global model to take, weight by weight.

The claim: the global model brings unwanted information too. A client therefore starts a round from its old model plus a learned
share W of the difference to the received model, in the upper layers; lower layers are taken as received:

    t = t_old + (t_g - t_old) W,   W <- clip(W - rate * grad_t f_i(t) (t_g - t_old), 0, 1)

W has one number per weight, starts at 1 and is kept between rounds, like the client's model t_old after its last training (the
initial weights before its first). It is learned on a random `share` of the client's samples, new in every round, in batches of
the recipe's size: in the client's first learning for up to `first` epochs, until the losses of the last ten epochs, each that
of its last batch, deviate by less than `threshold`; in later rounds for one epoch. Where the received layers are the old
ones, as in round 1, nothing is learned. Then the client trains from t as usual.

The client's own model is the served one after this step, from its W and old model; a client that never took part starts at
W = 1 and the initial weights. f_i is the method's loss without regularizers.

Defaults: rate 1, share 0.8, threshold 0.01 (paper; code 0.1), first = 100 epochs, which the code has not and may run for ever.
`layers = head` is the paper's p = 1 and the code's layer_idx = 2, which counts tensors; a list names other modules, `all` takes
every layer. Departures: the code takes a contiguous stretch of the samples, here it is a random subset; it lets absent clients
learn W in every round too, here only those that take part. A port keeps W in a worker that clients share.
rate = 0: W stays 1, which is FedAvg. Costs 2 M of client state and a forward pass over `share` of the data: below the head the
received weights stay, so their features are computed once. Other layers cost an epoch of training, up to `first` at the start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import Count, NonNegative, Share
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span
from fedloom.weights import Regions

RECENT = 10  # epochs whose losses decide whether the first learning is over


class FedALA(Part):
    """Before training, each client learns how much of the received upper layers to take."""

    paper = "Zhang et al. 2023, FedALA"
    work = "a pass over a share of the data before training, and up to 100 epochs of the head the first time"
    moves_start: ClassVar[bool] = True
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "rate": Span(0.1, 10.0, log=True, source="ours, around the code's 1"),
    }
    variants: ClassVar[frozenset[str]] = frozenset({"layers"})
    settled: ClassVar[frozenset[str]] = frozenset({"shares", "begun"})
    layers: str | tuple[str, ...] = "head"
    """where shares are learned: head | all | a list of modules"""
    rate: NonNegative = 1.0
    """learning rate of the shares; 0 is FedAvg"""
    share: Share = 0.8
    """share of the client's samples that shares are learned on"""
    threshold: NonNegative = 0.01
    """the first learning stops when losses deviate by less"""
    first: Count = 100
    """largest number of epochs of the first learning"""

    def regions(self, regions: Regions) -> Regions:
        return regions if self.layers == "all" else regions.share(*self._layers)

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"old": weights.clone(), "shares": torch.ones_like(weights), "begun": torch.zeros(1)}

    def before_training(self, client: ClientContext) -> None:
        shares = self._adapt(client)
        if shares is not None:
            client.state["shares"], client.state["begun"] = shares, torch.ones(1)

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # no step on shared weights

    def after_training(self, client: ClientContext) -> None:
        client.state["old"] = client.weights

    def personalize(self, client: ClientContext) -> None:
        self._adapt(client)

    def _adapt(self, client: ClientContext) -> Tensor | None:
        """Learn W, start the upper layers from the mixture, and return W; None where there is nothing to mix."""
        received, all_shares = client.named(client.weights), client.state["shares"].to(client.weights.device, copy=True)
        names = [name for name in received if self._mixes(name)]
        old, named = client.named(client.state["old"].to(all_shares.device)), client.named(all_shares)
        difference = {name: received[name] - old[name] for name in names}
        if not any(bool(gap.any()) for gap in difference.values()):
            return None
        recent: deque[float] = deque(maxlen=RECENT)
        losses: list[float] = []

        def loss(batch: Batch, own: ClientContext) -> Tensor:
            value = own.loss(batch)
            losses.append(float(value.detach()))
            return value

        def mixture() -> dict[str, Tensor]:
            return {name: old[name] + difference[name] * named[name] for name in names}

        order = torch.randperm(client.samples, generator=client.generator)[: int(self.share * client.samples)]
        batches: Iterable[Batch] = client.iterate(order=order)
        if self.layers == "head":  # the body stays as received
            batches = map(client.fix_features, batches)
        batches = list(batches)
        for _ in range(1 if bool(client.state["begun"]) else self.first):
            for batch in batches:
                for name, gradient in client.gradients_of(loss, mixture(), batch).items():
                    named[name].sub_(self.rate * gradient * difference[name]).clamp_(0, 1)
            if not losses:
                break
            recent.append(losses[-1])
            if len(recent) == RECENT and float(torch.tensor(recent).std(correction=0)) < self.threshold:
                break
        for name, value in mixture().items():
            received[name].copy_(value)
        return all_shares

    @property
    def _layers(self) -> tuple[str, ...]:
        return (self.layers,) if isinstance(self.layers, str) else self.layers

    def _mixes(self, name: str) -> bool:
        return self.layers == "all" or any(name.startswith(f"{layer}.") for layer in self._layers)
