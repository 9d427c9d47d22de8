"""Evaluation: the served model on a slice of a test set, or a model on one client's own test samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.engine.buffers import Region, SharedBuffers
from fedloom.engine.client.replica import Replica
from fedloom.engine.client.samples import held_back
from fedloom.engine.experiment import Experiment
from fedloom.engine.tasks.finetune import own_model
from fedloom.engine.tasks.task import ClientTask, Input, Number, Report, Task


@dataclass(frozen=True)
class Evaluate(Task):
    kind: ClassVar[str] = "test"
    which: str  # test | validation | clean
    begin: int
    end: int
    round: int

    def reads(self, worker: int) -> list[Region]:
        return []

    def writes(self, worker: int) -> list[Region]:
        return [Region("hits", (self.which, self.begin, self.end))]

    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        replica.receive(buffers.down, None)
        if self.which == "validation":
            labeled = held_back(replica.experiment)[self.begin : self.end]
        else:
            stage = replica.experiment.data.at(self.round)
            labeled = (stage.pooled if self.which == "test" else stage.clean)(self.begin, self.end)
        buffers.hits_of[self.which][self.begin : self.end] = replica.hits(labeled, borrowed=True)
        return {}


@dataclass(frozen=True)
class EvaluateClient(ClientTask):
    """A client's own test samples after a round, under the global weights or the client's own model."""

    kind: ClassVar[str] = "test client"
    remote: ClassVar[bool] = True
    reports: ClassVar[dict[str, Number]] = {"correct": "count", "total": "count"}
    personal: bool

    def flaw(self, report: Report, experiment: Experiment) -> str | None:
        """A client evaluates all of its test samples, whose number is known."""
        correct, total = report["correct"], report["total"]
        if correct > total:
            return f"it has {correct} of {total} right"
        held = len(experiment.data.at(self.round).partition.test(self.client))
        return None if total == held else f"it tested on {total} images, and it has {held}"

    @property
    def inputs(self) -> tuple[Input, ...]:
        return ("broadcast", "state") if self.personal else ("broadcast",)

    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        views, labeled = buffers.views(worker), replica.experiment.data.at(self.round).test(self.client)
        if self.personal:
            hits = replica.hits(labeled, counts=own_model(replica, self.client, views, self.round).own.counts)
        else:
            replica.receive(views.down, None)
            hits = replica.hits(labeled, borrowed=True)
        return {"correct": int(hits.sum()), "total": len(labeled)}

    def __str__(self) -> str:
        return f"test of client {self.client}"
