"""Fine-tuning of a client's own model, all epochs alike or in turns, with its metrics on test samples after every epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from fedloom.data import LabeledSamples
from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client import purposes
from fedloom.engine.client.batches import cut
from fedloom.engine.client.client import Client
from fedloom.engine.client.replica import MessageViews, Replica
from fedloom.engine.tasks.task import Input, Report, Task
from fedloom.evaluation.measure import Values, evaluate_samples
from fedloom.methods.api.alternation import Turn, alternation_of
from fedloom.methods.api.context import Objective, Phase, TrainSchedule, TrainSpec
from fedloom.rng import seeded, torch_generator


@dataclass
class Results:
    """One number of correct samples, and one value of every other metric, for each evaluation."""

    correct: list[int] = field(default_factory=list)
    metrics: dict[str, list[float | None]] = field(default_factory=dict)

    def add(self, correct: int, values: Values) -> None:
        self.correct.append(correct)
        for name, value in values.items():
            self.metrics.setdefault(name, []).append(value)


@dataclass(frozen=True)
class FineTune(Task):
    """`unseen`: also evaluate, at the start and the end, on at most this many test samples of classes that the client has no
    training sample of. `first`: also evaluate before the first epoch. `alternate`: in place of the regions, train what the
    method alternates between."""

    kind: ClassVar[str] = "fine-tune"
    client: int
    regions: list[str]
    epochs: int
    lr: float
    objective: Objective = "method"
    unseen: int = 0
    first: bool = True
    alternate: bool = False

    @property
    def inputs(self) -> tuple[Input, ...]:
        return ("broadcast", "state")

    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        return self.tune(replica, buffers.views(worker))

    def tune(self, replica: Replica, views: MessageViews) -> Report:
        client = own_model(replica, self.client, views)
        own, others = client.data.stage.test(self.client), unseen_classes(client, self.unseen)
        seen_results, unseen_results = Results(), Results()

        def evaluate(at_the_ends: bool) -> None:
            seen_results.add(*evaluate_samples(replica, own, counts=client.own.counts))
            if at_the_ends and len(others):
                unseen_results.add(*evaluate_samples(replica, others, counts=client.own.counts))

        if self.first:
            evaluate(True)
        whole = Turn("", tuple(self.regions), self.epochs)
        alternation = alternation_of(replica.experiment.program.method.parts)
        turns = alternation.epochs(self.epochs) if self.alternate else [whole] * self.epochs
        with seeded(replica.recipe.seed, purposes.FORWARD_FINE_TUNING, self.client):
            for epoch, turn in enumerate(turns):
                if epoch and turn is not turns[epoch - 1]:
                    replica.moments.reset()
                client.train(self._spec(turn, client))
                evaluate(epoch == self.epochs - 1)
        return {
            "correct": seen_results.correct,
            "total": len(own),
            "metrics": seen_results.metrics,
            "unseen": unseen_results.correct,
            "unseen_total": len(others),
            "unseen_metrics": unseen_results.metrics,
        }

    def _spec(self, turn: Turn, client: Client) -> TrainSpec:
        """One epoch of a turn."""
        steps = len(list(cut(len(client.own), client.own.batch_size, client.own.alone))) if turn.plain else 0
        return TrainSpec(
            (Phase(1),),
            lr=turn.rate * self.lr,
            schedule=TrainSchedule(steps, momentum=0.0, weight_decay=0.0) if turn.plain else None,
            objective=turn.objective or self.objective,
            corrected=False,
            names=tuple(turn.tensors(client.replica.layout.regions)),
        )

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


def unseen_classes(client: Client, most: int) -> LabeledSamples:
    """At most this many pooled test samples of the classes that the client has no training sample of."""
    experiment = client.replica.experiment
    pooled = client.data.stage.pooled(0, len(experiment.data.tested) if most else 0)
    absent = client.own.counts.cpu() == 0
    places = torch.nonzero(absent[pooled.y]).flatten()
    if len(places) > most:
        generator = torch_generator(experiment.recipe.seed, "unseen", str(client.client))
        places = places[torch.randperm(len(places), generator=generator)[:most].sort().values]
    return pooled[places]
