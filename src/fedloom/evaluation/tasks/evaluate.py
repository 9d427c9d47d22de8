"""Evaluation: the served model on a slice of a test set, or a model on one client's own test samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedloom.engine.buffers import Region, SharedBuffers
from fedloom.engine.client.replica import Replica
from fedloom.engine.client.samples import held_back
from fedloom.engine.experiment import Experiment
from fedloom.engine.tasks.task import ClientTask, Input, Number, Report, Task
from fedloom.evaluation.measure import evaluate_samples
from fedloom.evaluation.metrics import find_metric
from fedloom.evaluation.tasks.finetune import own_model
from fedloom.recipe import Recipe

PREFIX = "metric_"  # of a metric in a report


@dataclass(frozen=True)
class Evaluate(Task):
    """Hits, and with `scores` also scores, go to the buffers; the main process computes metrics of the whole set."""

    kind: ClassVar[str] = "test"
    which: str  # test | validation | clean
    begin: int
    end: int
    round: int
    scores: bool = False

    def reads(self, worker: int) -> list[Region]:
        return []

    def writes(self, worker: int) -> list[Region]:
        place = (self.which, self.begin, self.end)
        return [Region(name, place) for name in ("hits", *(["scores"] if self.scores else []))]

    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        replica.receive(buffers.down, None)
        if self.which == "validation":
            own = replica.experiment.data.validation_at(self.round)
            held = held_back(replica.experiment) if own is None else own.rows(self.begin, self.end)
            labeled = held[self.begin : self.end] if own is None else held
        else:
            stage = replica.experiment.data.at(self.round)
            labeled = (stage.pooled if self.which == "test" else stage.clean)(self.begin, self.end)
        hits = buffers.hits_of[self.which][self.begin : self.end]
        if self.scores:
            scores = replica.scores(labeled, borrowed=True)
            buffers.scores_of[self.which][self.begin : self.end] = scores
            hits.copy_(scores.argmax(1) == labeled.y)
        else:
            hits.copy_(replica.hits(labeled, borrowed=True))
        return {}


@dataclass(frozen=True)
class EvaluateClient(ClientTask):
    """A client's own test samples after a round, under the global weights or the client's own model.

    Who has the scores computes the metrics: scores and targets never leave a node, one number per metric does.
    """

    kind: ClassVar[str] = "test client"
    remote: ClassVar[bool] = True
    reports: ClassVar[dict[str, Number]] = {"correct": "count", "total": "count"}
    personal: bool

    @classmethod
    def reported(cls, recipe: Recipe) -> Mapping[str, Number]:
        others: dict[str, Number] = {f"{PREFIX}{name}": "metric" for name in recipe.metrics if name != "accuracy"}
        return {**cls.reports, **others}

    def flaw(self, report: Report, experiment: Experiment) -> str | None:
        """A client evaluates all of its test samples, whose number is known, and metrics have their bounds."""
        correct, total = report["correct"], report["total"]
        if correct > total:
            return f"it has {correct} of {total} right"
        for name in experiment.recipe.metrics:
            value, (low, high) = report.get(f"{PREFIX}{name}", math.nan), find_metric(name).bounds
            if not math.isnan(value) and not low <= value <= high:
                return f"its {name} is {value:g}, which is not between {low:g} and {high:g}"
        held = len(experiment.data.at(self.round).partition.test(self.client))
        return None if total == held else f"it tested on {total} samples, and it has {held}"

    @property
    def inputs(self) -> tuple[Input, ...]:
        return ("broadcast", "state") if self.personal else ("broadcast",)

    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        views, labeled = buffers.views(worker), replica.experiment.data.at(self.round).test(self.client)
        if self.personal:
            own = own_model(replica, self.client, views, self.round)
            correct, values = evaluate_samples(replica, labeled, counts=own.own.counts)
        else:
            replica.receive(views.down, None)
            correct, values = evaluate_samples(replica, labeled, borrowed=True)
        others = {f"{PREFIX}{name}": math.nan if value is None else value for name, value in values.items()}
        return {"correct": correct, "total": len(labeled), **others}

    def __str__(self) -> str:
        return f"test of client {self.client}"
