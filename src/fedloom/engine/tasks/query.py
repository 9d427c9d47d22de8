"""A client's answer to one of a part's queries: further training, sums over its data, or a change of its own state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client import purposes
from fedloom.engine.client.client import Client
from fedloom.engine.client.expected_steps import finishing_again
from fedloom.engine.client.replica import Replica
from fedloom.engine.tasks.task import CohortTask, Input, Number, Output, Report, Task
from fedloom.engine.tensor_layout import Item, TensorLayout, scoped
from fedloom.engine.timing import TaskClock
from fedloom.methods.api.part import Method
from fedloom.rng import seeded


@dataclass(frozen=True)
class QueryTask(CohortTask):
    """One client's part of a query."""

    remote: ClassVar[bool] = True
    part: str
    query: str

    @property
    def query_scope(self) -> str:
        return f"{self.part}.{self.query}"

    def answer(self, client: Client, buffers: SharedBuffers) -> None:
        part = client.replica.experiment.program.method.named(self.part)
        part.answer(self.query, scoped(buffers.message, self.query_scope), client.contexts[self.part])


@dataclass(frozen=True)
class Refine(QueryTask):
    """A query that trains: the client continues from the weights that it uploaded, and its upload is replaced.

    The other parts' `after_training` is then called again, for the new upload.
    """

    kind: ClassVar[str] = "refine"
    reports: ClassVar[dict[str, Number]] = {"loss": "loss", "steps": "count"}

    @property
    def inputs(self) -> tuple[Input, ...]:
        return ("broadcast", "upload", "state", "message")

    @property
    def outputs(self) -> tuple[Output, ...]:
        return ("upload", "state")

    def starting_state(self, method: Method, layout: TensorLayout, before: Tensor, after: Tensor) -> Tensor:
        return state_to_refine(method, layout, self.part, before, after)

    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        clock, views = TaskClock(), buffers.views(self.row)
        replica.receive(views.down, views.state, self.round)
        client = Client(replica, self.client, self.round, views, purpose=purposes.REFINING)
        before = replica.expected_steps.training(self.client, self.round).least
        client.segments = [before]
        uploaded = {**views.down, "w": views.up["w"], "statistics": views.up["statistics"]}
        replica.receive(uploaded, views.state, self.round)
        clock.received()
        with seeded(replica.recipe.seed, purposes.FORWARD_REFINING, self.round, self.client):
            self.answer(client, buffers)
            program = replica.experiment.program
            others = finishing_again(program.method, self.part)
            for other in others:
                for name, first in scoped(program.messages.uploads, other.name).items():
                    client.contexts[other.name].upload[name] = first
            client.after_training(others)
        clock.worked()
        replica.send(views)
        return {"loss": client.mean_loss(), "steps": client.steps - before, **clock.report()}


@dataclass(frozen=True)
class Ask(QueryTask):
    """A query that trains nothing: the client fills its reply."""

    kind: ClassVar[str] = "ask"

    @property
    def inputs(self) -> tuple[Input, ...]:
        return ("broadcast", "state", "message")

    @property
    def outputs(self) -> tuple[Output, ...]:
        return ("reply",)

    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        clock, views = TaskClock(), buffers.views(self.row)
        replica.receive(views.down, views.state, self.round)
        clock.received()
        own = {f"{self.part}.{name}": tensor for name, tensor in scoped(views.reply, self.query_scope).items()}
        client = Client(replica, self.client, self.round, replace(views, reply=own), purpose=purposes.ASKING)
        with seeded(replica.recipe.seed, purposes.forward_asking(self.part), self.round, self.client):
            self.answer(client, buffers)
        clock.worked()
        return clock.report()


@dataclass(frozen=True)
class Deliver(QueryTask):
    """A message to one client of the cohort, which changes its own state and personal regions, and nothing else.

    The client sees the weights that were broadcast in this round, with its personal regions as training left them.
    """

    kind: ClassVar[str] = "deliver"

    @property
    def inputs(self) -> tuple[Input, ...]:
        return ("broadcast", "upload", "state", "message")

    @property
    def outputs(self) -> tuple[Output, ...]:
        return ("state",)

    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        clock, views = TaskClock(), buffers.views(self.row)
        replica.receive(views.down, views.state, self.round)
        clock.received()
        client = Client(replica, self.client, self.round, views, purpose=purposes.DELIVERING)
        with seeded(replica.recipe.seed, purposes.FORWARD_DELIVERING, self.part, self.round, self.client):
            self.answer(client, buffers)
        clock.worked()
        replica.keep(views.state)
        return clock.report()


def state_to_refine(method: Method, layout: TensorLayout, part: str, before: Tensor, after: Tensor) -> Tensor:
    """A client's state for a query that trains. Parts whose `after_training` will be called again get their state from before
    the round, so that their corrections continue as in training; what `before_training` wrote, and everything else, is as
    training left it."""
    row = after.clone()
    old, new = layout.views(before), layout.views(row)
    for other in finishing_again(method, part):
        for name in new:
            owner, _, own_name = name.partition(".")
            if owner == other.name and own_name not in other.settled:
                new[name].copy_(old[name])
    return row


def query_items(layout: TensorLayout, task: Task) -> dict[str, Item]:
    """The tensors of a task's query in the layout of all messages, or of all replies."""
    return {name: item for name, item in layout.by_name.items() if name.startswith(f"{task.query_scope}.")}
