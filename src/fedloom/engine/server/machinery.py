"""What a run works with: the experiment, its state and buffers, and the back-end that performs its tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property

from fedloom.engine.backends.backend import Backend
from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client.expected_steps import ExpectedSteps
from fedloom.engine.experiment import Experiment
from fedloom.engine.store.client_state import ClientStateStore
from fedloom.engine.store.state import State
from fedloom.engine.tasks import Assignment, Report
from fedloom.engine.timing import RoundClock


@dataclass
class Machinery:
    experiment: Experiment
    state: State
    client_state: ClientStateStore
    buffers: SharedBuffers
    backend: Backend
    # encloses the work that a signal may interrupt without harm
    interruptible: Callable[[], AbstractContextManager[None]] = field(default=nullcontext, kw_only=True)
    # number of clients trained concurrently (default: one per worker)
    concurrent: int | None = field(default=None, kw_only=True)
    clock: RoundClock = field(default_factory=RoundClock, kw_only=True)

    @cached_property
    def expected_steps(self) -> ExpectedSteps:
        return ExpectedSteps(self.experiment)

    def work(self, assignments: Sequence[Assignment], done: Callable[[int], None] | None = None) -> list[Report | None]:
        """Run tasks on the back-end, and divide the elapsed time into computation and communication."""
        with self.clock.phase("communication"):
            began = time.perf_counter()
            reports = self.backend.run(assignments, done)
            workers = min(self.concurrent or self.backend.count, len(assignments))
            self.clock.worked(reports, time.perf_counter() - began, max(workers, 1))
        return reports

    def load_state(self, client: int, row: int | None = None) -> Callable[[int], None]:
        """A `prepare` function that copies a client's state into this row, or into the row of the worker that runs the task."""

        def prepare(worker: int) -> None:
            if self.experiment.program.messages.state.nbytes:
                self.buffers.state_rows[worker if row is None else row].copy_(self.client_state.get(client))

        return prepare
