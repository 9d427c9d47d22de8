"""How many steps a client's training takes: what the server expects, by the same arithmetic as the client's loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedloom.engine.batches import batches
from fedloom.engine.setup import Experiment
from fedloom.methods.method import Method
from fedloom.methods.part import Part
from fedloom.methods.seen import Data, Phase
from fedloom.nets import batch_normalisers

MOST = 1000  # further steps per planned one that are believed where a part does not say how many it takes


def phases(method: Method, epochs: int) -> list[Phase]:
    """The local epochs of a round, as the one part arranges them that decides it."""
    arranger = method.the("phases")
    return arranger.phases(epochs) if arranger else [Phase(epochs)]


@dataclass(frozen=True)
class Expected:
    """Numbers of steps that a client may report: exactly `least`, or more up to `most`."""

    least: int
    most: int
    planned: int = 0  # of them, in one go

    def segments(self, steps: int) -> tuple[int, ...]:
        """What is planned, then what came on top of it with momentum buffers that began at zero."""
        return tuple(count for count in (self.planned, steps - self.planned) if count)

    def flaw(self, steps: int) -> str | None:
        if self.least <= steps <= self.most:
            return None
        wanted = str(self.least) if self.least == self.most else f"{self.least} to {self.most}"
        return f"it reports {steps} steps, and its samples, batches and epochs make {wanted}"


class LocalWork:
    """Steps that count: those that train anything shared."""

    def __init__(self, experiment: Experiment) -> None:
        layout, recipe = experiment.layout, experiment.recipe
        self.experiment, self.method = experiment, experiment.method
        self.alone = not batch_normalisers(experiment.net)
        self.epochs = 0
        for phase in phases(self.method, recipe.epochs):
            stretches = layout.slices(layout.trainable(*phase.regions))
            if stretches and stretches[0].start < layout.exchanged:
                self.epochs += phase.epochs

    def epoch(self, samples: int) -> int:
        """Steps of one epoch over so many samples."""
        size = self.experiment.recipe.batch
        return batches(samples, max(samples, 1) if size == "full" else size, self.alone)

    def planned(self, client: int, round: int) -> int:
        """The steps of the local phases."""
        return self.epochs * self.epoch(len(self.experiment.training(client, round)))

    def training(self, client: int, round: int) -> Expected:
        """Of the local phases and of what `finish` adds."""
        return self._expected(self.planned(client, round), client, round, self._finishing())

    def acting(self, part: Part, client: int, round: int) -> Expected:
        """Of a second act: the part's own steps, and of what the others' `finish` adds once more."""
        return self._expected(0, client, round, [part, *self._finishing(part)], act=part)

    def _finishing(self, but: Part | None = None) -> list[Part]:
        return [part for part in self.method.hooked("finish") if part is not but]

    def _expected(self, planned: int, client: int, round: int, parts: list[Part], act: Part | None = None) -> Expected:
        size = self._sizes(client, round)
        least, known = planned, True
        for part in parts:
            further = part.further("act" if part is act else "finish")
            known = known and further is not None
            least += sum(epochs * self.epoch(size(data)) for epochs, data in further or ())
        if not self.experiment.layout.exchanged:
            return Expected(0, 0)
        return Expected(least, least if known else least + MOST * max(self.planned(client, round), 1), planned)

    def _sizes(self, client: int, round: int) -> Callable[[Data], int]:
        experiment = self.experiment

        def size(data: Data) -> int:
            if not isinstance(data, str):
                return len(data)
            if data == "own":
                return len(experiment.training(client, round))
            return len(experiment.validation) if data == "held" else len(experiment.public.y)

        return size
