"""Local training in a round: of one client, or of several clients in one computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client.client import Client
from fedloom.engine.client.purposes import FORWARD_TRAINING
from fedloom.engine.client.replica import Replica
from fedloom.engine.client.vmap.clients import VmapClients
from fedloom.engine.tasks.task import CohortTask, Input, Number, Output, Report, Task
from fedloom.engine.timing import TaskClock
from fedloom.rng import seeded


@dataclass(frozen=True)
class Train(CohortTask):
    kind: ClassVar[str] = "train"
    remote: ClassVar[bool] = True
    reports: ClassVar[dict[str, Number]] = {"loss": "loss", "steps": "count", "seconds": "seconds"}

    @property
    def inputs(self) -> tuple[Input, ...]:
        return ("broadcast", "state")

    @property
    def outputs(self) -> tuple[Output, ...]:
        return ("upload", "state")

    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        clock, views, method = TaskClock(), buffers.views(self.row), replica.experiment.program.method
        replica.receive(views.down, views.state, self.round)
        clock.received()
        client = Client(replica, self.client, self.round, views)
        client.before_training(method.hooked("before_training"))
        with seeded(replica.recipe.seed, FORWARD_TRAINING, self.round, self.client):
            client.train_locally()
            client.after_training(method.hooked("after_training"))
        clock.worked()
        replica.send(views)
        return {"loss": client.mean_loss(), "steps": client.steps, **clock.report()}


@dataclass(frozen=True)
class TrainTogether(Task):
    """Several clients under vmap; `each` of the report is one report per client."""

    kind: ClassVar[str] = "train together"
    clients: list[int]
    round: int
    own_rows: list[int]

    @property
    def inputs(self) -> tuple[Input, ...]:
        return ("broadcast", "state")

    @property
    def outputs(self) -> tuple[Output, ...]:
        return ("upload", "state")

    def rows(self, worker: int) -> tuple[int, ...]:
        return tuple(self.own_rows)

    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        clock = TaskClock()
        views = [buffers.views(row) for row in self.own_rows]
        each = VmapClients(replica, self.clients, self.round, views).run()
        clock.worked()
        return {"each": each, **clock.report()}

    def __str__(self) -> str:
        return f"train of one of the clients {', '.join(map(str, self.clients))}"
