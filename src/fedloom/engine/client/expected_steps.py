"""The number of steps that the server expects of a client, by the same arithmetic as the local loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedloom.engine.client.batches import batches
from fedloom.engine.client.local_work import local_phases, local_work
from fedloom.engine.experiment import Experiment
from fedloom.methods.api.context import Data
from fedloom.methods.api.part import Method, Part
from fedloom.nets import batch_normalizers

MOST = 1000  # accepted further steps per planned step, for a part that does not declare how many it takes


def finishing_again(method: Method, part: str) -> list[Part]:
    """The parts whose `after_training` is called again after this part's query that trains."""
    return [other for other in method.hooked("after_training") if other.name != part]


@dataclass(frozen=True)
class StepRange:
    """The number of steps that a client may report: from `least` to `most`."""

    least: int
    most: int
    planned: int = 0  # those of the local phases

    def segments(self, steps: int) -> tuple[int, ...]:
        """The steps of the local phases, then further ones, for which the momentum buffers started at zero."""
        return tuple(count for count in (self.planned, steps - self.planned) if count)

    def flaw(self, steps: int) -> str | None:
        if self.least <= steps <= self.most:
            return None
        expected = str(self.least) if self.least == self.most else f"{self.least} to {self.most}"
        return f"it reports {steps} steps, and its samples, batches and epochs make {expected}"


class ExpectedSteps:
    """Only steps that train shared weights are counted."""

    def __init__(self, experiment: Experiment) -> None:
        program, recipe = experiment.program, experiment.recipe
        self.experiment, self.method = experiment, program.method
        self.alone = not batch_normalizers(program.net)
        self.recipe = recipe
        self._shared: dict[tuple[str, ...], bool] = {}  # by the regions of a phase

    def epoch(self, samples: int) -> int:
        """Steps of one epoch over this many samples."""
        size = self.experiment.recipe.batch
        return batches(samples, max(samples, 1) if size == "full" else size, self.alone)

    def planned(self, client: int, round: int) -> int:
        """The steps of the local phases that train shared weights."""
        samples = len(self.experiment.training(client, round))
        steps = 0
        for phase in local_phases(self.method, local_work(self.recipe, client, round)):
            if samples and self._trains_shared(phase.regions):
                steps += phase.steps or phase.epochs * self.epoch(samples)
        return steps

    def _trains_shared(self, regions: tuple[str, ...]) -> bool:
        if regions not in self._shared:
            layout = self.experiment.program.layout
            slices = layout.slices(layout.trainable(*regions))
            self._shared[regions] = bool(slices) and slices[0].start < layout.shared
        return self._shared[regions]

    def training(self, client: int, round: int) -> StepRange:
        """The steps of the local phases and of what `after_training` adds."""
        return self._expected(self.planned(client, round), client, round, self.method.hooked("after_training"))

    def refining(self, part: Part, client: int, round: int) -> StepRange:
        """The steps of a query that trains: the part's own, and what the other parts' `after_training` adds again."""
        others = finishing_again(self.method, part.name)
        return self._expected(0, client, round, [part, *others], asking=part)

    def _expected(
        self, planned: int, client: int, round: int, parts: list[Part], asking: Part | None = None
    ) -> StepRange:
        size = self._sizes(client, round)
        least, known = planned, True
        for part in parts:
            further = part.extra_training("answer" if part is asking else "after_training")
            known = known and further is not None
            least += sum(epochs * self.epoch(size(data)) for epochs, data in further or ())
        if not self.experiment.program.layout.shared:
            return StepRange(0, 0)
        return StepRange(least, least if known else least + MOST * max(self.planned(client, round), 1), planned)

    def _sizes(self, client: int, round: int) -> Callable[[Data], int]:
        experiment = self.experiment

        def size(data: Data) -> int:
            if not isinstance(data, str):
                return len(data)
            if data == "own":
                return len(experiment.training(client, round))
            return len(experiment.data.validation) if data == "held" else len(experiment.data.public.y)

        return size
