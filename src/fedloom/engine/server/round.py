"""The round loop: sample clients, broadcast, train locally, aggregate. Every method runs through it, on any back-end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedloom.engine.server.acceptance import Acceptance
from fedloom.engine.server.aggregation import RoundServer, Upload
from fedloom.engine.server.callback import Inspection, RunCallback
from fedloom.engine.server.cohort import sample_clients
from fedloom.engine.server.local_training import train_cohort
from fedloom.engine.server.machinery import Machinery
from fedloom.engine.server.queries import Queries
from fedloom.engine.server.round_line import method_entries, round_line
from fedloom.engine.server.train_on_server import train_on_server
from fedloom.engine.tasks import Report
from fedloom.engine.timing import RoundClock


@dataclass
class Federation(Machinery):
    """A server and the back-end that its clients run on. A round either completes or leaves the state as it was."""

    callback: RunCallback = field(default_factory=RunCallback)
    tested: list[Report | None] | None = None  # clients' reports on the served model, where clients evaluate it

    def round(self, cohort: list[int] | None = None) -> dict[str, Any]:
        """Run one round; returns its line of rounds.jsonl."""
        self.clock, number = RoundClock(), self.state.round + 1
        cohort = self.cohort(number) if cohort is None else cohort
        acceptance = Acceptance(self.experiment, self.state, self.buffers)
        asked = self.initialize(acceptance) if number == 1 else (0, 0)
        fixed = len(cohort) * self.state.changed_fixed
        sent = self.broadcast()
        inspection = Inspection(self, self.callback, number, sent)

        uploads = self.train(cohort, number, acceptance)
        inspection.clients_trained(uploads)

        server = RoundServer(self.state, uploads, Queries(self, acceptance).ask, asked[0] + fixed, asked[1])
        with self.clock.phase("aggregation"), self.state.restored_on_error(self._may_fail):
            if uploads or acceptance.needs_none:
                self.aggregate(server, acceptance, cohort)
            if number == self.experiment.recipe.rounds:
                self.finalize(server)
        entries = method_entries(self.experiment.program.method, server, self.experiment.recipe.metrics)
        inspection.aggregated(server.accepted)

        self.commit(server.accepted, number)
        return {**round_line(self.experiment.program, number, cohort, server, acceptance.lost, self.clock), **entries}

    def initialize(self, acceptance: Acceptance) -> tuple[int, int]:
        """What parts do before the first round; returns the bytes that went down and up."""
        server = RoundServer(self.state, (), Queries(self, acceptance).ask)
        for part in self.experiment.program.method.hooked("initialize"):
            part.initialize(server.context(part))
            self.state.check(f"what {part.name} does at the beginning")
        return server.down, server.up

    def cohort(self, round: int) -> list[int]:
        """Sample the clients of a round: a function of seed and round alone."""
        return [0] if self.experiment.program.pooled else sample_clients(self.experiment.recipe, round)

    def broadcast(self) -> dict[str, Tensor]:
        """Copy the global weights, and what parts send with them, into the shared buffers."""
        with self.clock.phase("communication"):
            sent = self.state.broadcast()
            self.buffers.broadcast(sent)
        return sent

    def train(self, cohort: Sequence[int], number: int, acceptance: Acceptance) -> list[Upload]:
        """Every client of the cohort trains locally; returns the uploads that pass all checks, in cohort order."""
        reports = train_cohort(self, cohort, number, self.callback.client_done)
        with self.clock.phase("aggregation"):
            checked = [
                acceptance.one(client, row, reports[row], self.expected_steps.training(client, number))
                for row, client in enumerate(cohort)
            ]
            uploads = acceptance.plausible([upload for upload in checked if upload is not None])
        acceptance.require(uploads, cohort)
        return uploads

    def aggregate(self, server: RoundServer, acceptance: Acceptance, cohort: Sequence[int]) -> None:
        """Replace the global weights by the weighted mean of the uploads, or by what the method's parts decide."""
        state, method = self.state, self.experiment.program.method
        for part in method.hooked("after_uploads"):
            part.after_uploads(server.context(part))  # may query clients again
        acceptance.require(server.accepted, cohort)
        if not server.accepted and not acceptance.needs_none:
            return

        aggregator, stepper = method.the("aggregate"), method.the("server_step")
        if aggregator is None:
            weights = server.average("w", out=state.w if stepper is None else None)
        else:
            weights = aggregator.aggregate(server.context(aggregator))
        server.aggregate = weights  # without a step: the new weights
        if stepper is not None:
            weights = stepper.server_step(weights, server.context(stepper))
        state.w.copy_(weights)
        if state.statistics.numel() and server.accepted:
            state.statistics.copy_(server.average("statistics"))

        for part in method.hooked("after_aggregation"):
            part.after_aggregation(server.context(part))
        state.check("aggregation")
        for part in method.hooked("server_training"):
            train_on_server(self, server, part.name)
            state.check(f"the server's training by {part.name}")

    def finalize(self, server: RoundServer) -> None:
        """What parts do after the last round, even if no client took part in it."""
        for part in self.experiment.program.method.hooked("finalize"):
            part.finalize(server.context(part))
            self.state.check(f"what {part.name} does at the end")

    def commit(self, accepted: Sequence[Upload], number: int) -> None:
        """Keep the new state of the accepted clients, and move on to the next round."""
        with self.clock.phase("communication"):
            for upload in accepted:
                self.client_state.put(upload.client, self.buffers.state_rows[upload.row], number)
        self.state.round = number

    @property
    def _may_fail(self) -> bool:
        """Whether aggregation can fail halfway: queries may lose every client, server training may be interrupted."""
        method = self.experiment.program.method
        return bool(method.hooked("server_training") or method.hooked("after_uploads"))
