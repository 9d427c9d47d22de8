"""The server's own training, from the newly aggregated weights and the server's state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedloom.engine.buffers import Region, SharedBuffers
from fedloom.engine.client import purposes
from fedloom.engine.client.client import Client
from fedloom.engine.client.replica import Replica
from fedloom.engine.client.teachers import UploadedModel
from fedloom.engine.tasks.task import Report, Task
from fedloom.engine.timing import TaskClock
from fedloom.rng import seeded


@dataclass(frozen=True)
class TrainOnServer(Task):
    kind: ClassVar[str] = "server training"
    round: int
    part: str
    peers: list[tuple[int, int, float]]  # accepted uploads: row, samples, share in the mean

    def reads(self, worker: int) -> list[Region]:
        return [Region("server"), Region("server upload"), *(Region("upload", (row,)) for row, _, _ in self.peers)]

    def writes(self, worker: int) -> list[Region]:
        return [Region("server"), Region("server upload")]

    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        clock, views = TaskClock(), buffers.server_views()
        peers = [UploadedModel(buffers.up(row), samples, share) for row, samples, share in self.peers]
        replica.receive(views.down, None, self.round)
        clock.received()
        server = Client(replica, None, self.round, views, purpose=purposes.server_training(self.part), peers=peers)
        with seeded(replica.recipe.seed, purposes.forward_server_training(self.part), self.round):
            replica.experiment.program.method.named(self.part).server_training(server.contexts[self.part])
        clock.worked()
        replica.send(replace(views, state={}))
        return {"loss": server.mean_loss(), **clock.report()}

    def __str__(self) -> str:
        return f"the server's training by {self.part}"
