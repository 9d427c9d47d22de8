"""Evaluation on a client's own validation samples, where clients hold them out (`data.validation_from: clients`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client.replica import Replica
from fedloom.engine.tasks.task import ClientTask, Input, Report
from fedloom.evaluation.measure import evaluate_samples
from fedloom.evaluation.tasks.evaluate import PREFIX
from fedloom.evaluation.tasks.finetune import own_model


@dataclass(frozen=True)
class ValidateClient(ClientTask):
    """The client's own model on its own validation samples after a round."""

    kind: ClassVar[str] = "validate client"

    @property
    def inputs(self) -> tuple[Input, ...]:
        return ("broadcast", "state")

    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        stage = replica.experiment.data.validation_at(self.round)
        assert stage is not None
        labeled = stage.train(self.client)
        own = own_model(replica, self.client, buffers.views(worker), self.round)
        correct, values = evaluate_samples(replica, labeled, counts=own.own.counts)
        others = {f"{PREFIX}{name}": math.nan if value is None else value for name, value in values.items()}
        return {"correct": correct, "total": len(labeled), **others}

    def __str__(self) -> str:
        return f"validation of client {self.client}"
