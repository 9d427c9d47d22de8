"""Which uploads of a round are used. Nothing that arrives is trusted; a rejected client is recorded with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client.expected_steps import StepRange
from fedloom.engine.experiment import Experiment
from fedloom.engine.server.aggregation import Upload, flaw
from fedloom.engine.server.bounds import absurd_uploads
from fedloom.engine.store.state import State
from fedloom.engine.tasks import Report
from fedloom.errors import AllDiverged, TooFew

MOST_NAMED = 5  # number of lost clients that an error names
WORKER_DIED = "its worker died every time"
DIVERGED = ("is not finite", "too large to compute with")


class Acceptance:
    """The checks of one round. `lost`: the rejected clients, and why."""

    def __init__(self, experiment: Experiment, state: State, buffers: SharedBuffers) -> None:
        self.experiment, self.state, self.buffers = experiment, state, buffers
        self.lost: dict[int, str] = {}
        self._aggregator = experiment.program.method.the("aggregate")

    @property
    def needs_none(self) -> bool:
        """Whether the method aggregates even without any accepted upload."""
        return self._aggregator is not None and self._aggregator.always

    def one(self, client: int, row: int, report: Report | None, expected: StepRange) -> Upload | None:
        """Check one upload by itself: names, types, shapes, finiteness, and the number of steps."""
        if report is None or "lost" in report:
            self.lost[client] = report["lost"] if report else WORKER_DIED
            return None
        views, messages = self.buffers.views(row), self.experiment.program.messages
        steps = int(report.get("steps", expected.least))  # a secure sum hides them
        reason = flaw(messages.up, views.up) or flaw(messages.state, views.state) or expected.flaw(steps)
        if reason:
            self.lost[client] = reason
            return None
        samples = len(self.experiment.training(client, self.state.round + 1))
        return Upload(client, row, samples, expected.segments(steps), float(report["loss"]), views.up)

    def plausible(self, uploads: Sequence[Upload]) -> list[Upload]:
        """Compare the uploads with each other, and drop those of an absurd size."""
        factor = self.experiment.recipe.deploy.max_distance
        if self._aggregator is not None and self._aggregator.bounds:
            factor = None
        reasons = absurd_uploads(uploads, {"w": self.state.w, "statistics": self.state.statistics}, factor)
        self.lost.update(reasons)
        return [upload for upload in uploads if upload.client not in reasons]

    def require(self, uploads: Sequence[Upload], cohort: Sequence[int]) -> None:
        """Stop the run if too few uploads are left for a round; the state is then as it was before the round."""
        wanted = self.experiment.recipe.deploy.min_cohort
        least = min(0 if wanted == 1 and self.needs_none else wanted, len(cohort))
        if len(uploads) >= least:
            return
        number, reasons = self.state.round + 1, _listed(self.lost)
        if uploads or least > 1:
            raise TooFew(
                f"round {number}: {len(uploads)} of {len(cohort)} uploads arrived, "
                f"deploy.min_cohort is {least} ({reasons})"
            )
        diverged = all(reason.endswith(DIVERGED) for reason in self.lost.values())
        raise (AllDiverged if diverged else TooFew)(
            f"round {number}: all {len(cohort)} uploads are lost, so there is nothing to aggregate ({reasons}); "
            + ("training has diverged: lower lr or clip gradients" if diverged else "the run can be resumed")
        )


def _listed(lost: Mapping[int, str]) -> str:
    named = [f"client {client}: {reason}" for client, reason in lost.items()]
    more = [f"and {len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    return "; ".join(named[:MOST_NAMED] + more)
