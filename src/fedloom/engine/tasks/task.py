"""A task: one piece of work for a worker or a node, as a value.

Each kind of work is one class. It declares which buffers it reads and writes, what it reports, and whether it may run on a
remote node; every back-end derives from that what to send, what to expect and what to check. A new kind of task is a new
subclass and nothing else: back-ends have no list of kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from torch import Tensor

from fedloom.engine.buffers import Region, SharedBuffers
from fedloom.engine.client.replica import Replica
from fedloom.engine.experiment import Experiment
from fedloom.engine.tensor_layout import TensorLayout
from fedloom.errors import FedloomError
from fedloom.methods.api.part import Method
from fedloom.recipe import Recipe

Report = dict[str, Any]
Input = Literal["broadcast", "state", "upload", "message"]
Output = Literal["upload", "state", "reply"]
Number = Literal["count", "seconds", "loss", "metric"]  # an integer >= 0 | a finite number >= 0 | any number, even NaN

TASKS: dict[str, type[Task]] = {}  # by kind; subclasses register themselves


@dataclass(frozen=True)
class Task(ABC):
    kind: ClassVar[str]
    # whether it is a client's work, which runs on a node in a deployment
    remote: ClassVar[bool] = False
    # the only numbers that a node may report to the server; `reported` adds those that the recipe asks for
    reports: ClassVar[Mapping[str, Number]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" in cls.__dict__:
            TASKS[cls.kind] = cls

    @abstractmethod
    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        """Do the work. The report must be representable as JSON."""

    @classmethod
    def reported(cls, recipe: Recipe) -> Mapping[str, Number]:
        """The numbers that a node reports under this recipe."""
        return cls.reports

    def flaw(self, report: Report, experiment: Experiment) -> str | None:
        """What is wrong with a node's report beyond the range of its numbers, or None."""
        return None

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What it reads of the client's messages and state. A task that reads the upload continues this round's work."""
        return ("broadcast",)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What it writes of the client's messages and state."""
        return ()

    @property
    def starts_round(self) -> bool:
        """Whether a client's work of a round starts with this task, rather than continues."""
        return "upload" in self.outputs and "upload" not in self.inputs

    @property
    def query_scope(self) -> str:
        """For a task that answers a query: the prefix of the query's tensors in the layouts of messages and replies."""
        return ""

    def starting_state(self, method: Method, layout: TensorLayout, before: Tensor, after: Tensor) -> Tensor:
        """The state that a task which continues a round starts from, given those before the round and after training."""
        return after

    def rows(self, worker: int) -> tuple[int, ...]:
        """The rows of the buffers that it uses: its worker's, unless it has rows of its own."""
        return (worker,)

    def reads(self, worker: int) -> list[Region]:
        """The regions to copy to a worker that does not share memory. The broadcast is always copied."""
        shared = [Region("message")] if "message" in self.inputs else []
        # outputs travel as well, since their rows hold first values that the task may leave as they are
        outputs = [name for name in self.outputs if name not in self.inputs]
        names = [name for name in (*self.inputs, *outputs) if name not in ("broadcast", "message")]
        return [*(Region(name, (row,)) for row in self.rows(worker) for name in names), *shared]

    def writes(self, worker: int) -> list[Region]:
        """The regions to copy back from such a worker."""
        return [Region(name, (row,)) for row in self.rows(worker) for name in self.outputs]

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "arguments": {field.name: getattr(self, field.name) for field in fields(self)}}

    @staticmethod
    def from_json(order: Mapping[str, Any]) -> Task:
        if order["kind"] not in TASKS:
            raise FedloomError(f"this worker has no task of the kind {order['kind']!r}")
        return TASKS[order["kind"]](**order["arguments"])

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True)
class ClientTask(Task):
    """The work of one client."""

    client: int
    round: int

    def __str__(self) -> str:
        return f"{self.kind} of client {self.client}"


@dataclass(frozen=True)
class CohortTask(ClientTask):
    """The work of one client of a cohort, in a row of the buffers that it keeps for the whole round."""

    row: int

    def rows(self, worker: int) -> tuple[int, ...]:
        return (self.row,)


@dataclass(frozen=True)
class Assignment:
    """A task to be run. `cost`: the longest tasks start first. `prepare`: fills the buffers for a worker, before every try."""

    task: Task
    cost: int = 1
    prepare: Callable[[int], None] | None = None
