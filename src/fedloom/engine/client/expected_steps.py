"""The number of steps that the server expects of a client, by the same arithmetic as the local loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedloom.engine.client.batches import batches
from fedloom.engine.experiment import Experiment
from fedloom.methods.api.context import Data, Phase
from fedloom.methods.api.part import Method, Part
from fedloom.nets import batch_normalizers

MOST = 1000  # accepted further steps per planned step, for a part that does not declare how many it takes


def local_phases(method: Method, epochs: int) -> tuple[Phase, ...]:
    """The local epochs of a round, as the part that claims `phases` arranges them."""
    arranger = method.the("phases")
    return tuple(arranger.phases(epochs)) if arranger else (Phase(epochs),)


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
        self.epochs = 0
        for phase in local_phases(self.method, recipe.epochs):
            slices = program.layout.slices(program.layout.trainable(*phase.regions))
            if slices and slices[0].start < program.layout.shared:
                self.epochs += phase.epochs

    def epoch(self, samples: int) -> int:
        """Steps of one epoch over this many samples."""
        size = self.experiment.recipe.batch
        return batches(samples, max(samples, 1) if size == "full" else size, self.alone)

    def planned(self, client: int, round: int) -> int:
        """The steps of the local phases."""
        return self.epochs * self.epoch(len(self.experiment.training(client, round)))

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
