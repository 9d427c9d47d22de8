"""Fine-tuning of a client's own model, with its test accuracy after every epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedloom.data import LabeledSamples
from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client import purposes
from fedloom.engine.client.client import Client
from fedloom.engine.client.replica import MessageViews, Replica
from fedloom.engine.tasks.task import Input, Report, Task
from fedloom.methods.api.context import Objective, Phase, TrainSpec
from fedloom.rng import seeded, torch_generator
from fedloom.weights import Regions


@dataclass(frozen=True)
class FineTune(Task):
    """`unseen`: also evaluate, at the start and the end, on at most this many test samples of classes that the client has no
    training sample of. `first`: also evaluate before the first epoch."""

    kind: ClassVar[str] = "fine-tune"
    client: int
    regions: list[str]
    epochs: int
    lr: float
    objective: Objective = "method"
    unseen: int = 0
    first: bool = True

    @property
    def inputs(self) -> tuple[Input, ...]:
        return ("broadcast", "state")

    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        return self.tune(replica, buffers.views(worker))

    def tune(self, replica: Replica, views: MessageViews) -> Report:
        client = own_model(replica, self.client, views)
        own, others = client.data.stage.test(self.client), unseen_classes(client, self.unseen)
        correct, unseen_correct = [], []

        def evaluate(at_the_ends: bool) -> None:
            correct.append(int(replica.hits(own, counts=client.own.counts).sum()))
            if at_the_ends and len(others):
                unseen_correct.append(int(replica.hits(others, counts=client.own.counts).sum()))

        if self.first:
            evaluate(True)
        names = tuple(tunable(replica.layout.regions, self.regions))
        spec = TrainSpec((Phase(1),), lr=self.lr, names=names, corrected=False, objective=self.objective)
        with seeded(replica.recipe.seed, purposes.FORWARD_FINE_TUNING, self.client):
            for epoch in range(self.epochs):
                client.train(spec)
                evaluate(epoch == self.epochs - 1)
        return {"correct": correct, "total": len(own), "unseen": unseen_correct, "unseen_total": len(others)}

    def __str__(self) -> str:
        return f"fine-tuning of client {self.client}"


def own_model(replica: Replica, client: int, views: MessageViews, round: int = 0) -> Client:
    """The client's own model: the served weights with its personal regions, then personalized by the method's parts."""
    replica.receive(views.down, views.state)
    one = Client(replica, client, 0, views, purpose=purposes.FINE_TUNING, stage=round)
    if len(one.own):
        with seeded(replica.recipe.seed, purposes.FORWARD_PERSONALIZING, client):
            for part in replica.experiment.program.method.hooked("personalize"):
                part.personalize(one.contexts[part.name])
    return one


def tunable(regions: Regions, which: list[str]) -> list[str]:
    """The parameters of these regions that may be fine-tuned: all but the constant ones."""
    return [n for n in regions.select(*which) if n not in regions.statistics and n not in regions.constant]


def unseen_classes(client: Client, most: int) -> LabeledSamples:
    """At most this many pooled test samples of the classes that the client has no training sample of."""
    experiment = client.replica.experiment
    pooled = client.data.stage.pooled(0, len(experiment.data.dataset.test_y) if most else 0)
    absent = client.own.counts.cpu() == 0
    places = torch.nonzero(absent[pooled.y]).flatten()
    if len(places) > most:
        generator = torch_generator(experiment.recipe.seed, "unseen", str(client.client))
        places = places[torch.randperm(len(places), generator=generator)[:most].sort().values]
    return pooled[places]
