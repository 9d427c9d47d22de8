"""What every back-end offers to the round loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fedloom.engine.client.replica import Replica
from fedloom.engine.tasks import Assignment, Report


class Backend(Protocol):
    """Where tasks run: workers on this machine, workers on other machines, or nodes of a deployment."""

    @property
    def count(self) -> int: ...  # of workers
    @property
    def deaths(self) -> int: ...  # workers that died and were replaced
    @property
    def replica(self) -> Replica: ...  # of this process

    def run(self, assignments: Sequence[Assignment], done: Callable[[int], None] | None = None) -> list[Report | None]:
        """Reports in the order of the assignments; None if every try failed, or a report whose `lost` says why.

        `done` is called with the index of every assignment that is over.
        """
        ...
