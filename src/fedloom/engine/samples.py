"""Some training images as a client works through them: shuffled, augmented, in whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import torch
from torch import Tensor

from fedloom.data import Pictures, Pipeline
from fedloom.engine.batches import cut
from fedloom.engine.clock import Preparing
from fedloom.engine.setup import Experiment

PREPARED_BYTES = 64 << 20  # images are turned into floats once a job if they need no more than this

Cut = tuple[Tensor, Tensor, Tensor]  # images, labels, their places among the samples


class Samples:
    """These images; draws come from the generator that is given. `pipeline`: theirs, if not the experiment's."""

    def __init__(
        self,
        experiment: Experiment,
        pictures: Pictures,
        device: str,
        alone: bool,
        pipeline: Pipeline | None = None,
    ) -> None:
        self.experiment, self.device, self.alone = experiment, device, alone
        self.x, self.rows, self.y = pictures.x, pictures.rows, pictures.y.to(device)
        self.pipeline = pipeline or experiment.pipeline
        self.batch_size = len(self.rows) if experiment.recipe.batch == "full" else experiment.recipe.batch
        self._prepared: Tensor | None = None
        self._counts: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def counts(self) -> Tensor:
        """(C,) samples of each class."""
        if self._counts is None:
            self._counts = torch.bincount(self.y, minlength=self.experiment.images.classes).float()
        return self._counts

    def epoch(self, generator: torch.Generator, size: int | None = None) -> Iterator[Cut]:
        for chosen in self.orders(generator, size):
            yield self.batch(chosen, generator)

    def epochs(self, generator: torch.Generator, count: int) -> Iterator[Cut]:
        for _ in range(count):
            yield from self.epoch(generator)

    def orders(self, generator: torch.Generator, size: int | None = None) -> Iterator[Tensor]:
        """Which samples the batches of an epoch hold."""
        began = perf_counter()
        order = torch.randperm(len(self), generator=generator)
        Preparing.since(began)
        for stretch in cut(len(self), size or self.batch_size, self.alone):
            yield order[stretch]

    def draw(self, generator: torch.Generator) -> Cut:
        """One batch of its own."""
        return self.batch(torch.randperm(len(self), generator=generator)[: self.batch_size], generator)

    def over(self) -> Iterator[Cut]:
        """All of them once, in order, as for evaluation."""
        for stretch in cut(len(self), self.experiment.recipe.eval_batch, self.alone):
            yield self.batch(torch.arange(stretch.start, stretch.stop), None)

    def batch(self, chosen: Tensor, generator: torch.Generator | None) -> Cut:
        """These of the samples; augmented by the generator's draws where there is one and the recipe says so."""
        began = perf_counter()
        made = self._batch(chosen, generator)
        Preparing.since(began)
        return made

    def _batch(self, chosen: Tensor, generator: torch.Generator | None) -> Cut:
        if generator is not None and self.pipeline.augment != "none":
            return self.pipeline(self.x[self.rows[chosen]], generator).to(self.device), self.y[chosen], chosen
        if self._prepared is None and len(self) * self.x[0].numel() * 4 > PREPARED_BYTES:
            return self.pipeline(self.x[self.rows[chosen]], None).to(self.device), self.y[chosen], chosen
        return self.prepared()[chosen].permute(0, 3, 1, 2), self.y[chosen], chosen

    def prepared(self) -> Tensor:
        """All of them as floats, without augmentation; N,H,W,C, so that rows are whole images."""
        if self._prepared is None:
            floats = self.pipeline(self.x[self.rows], None)
            self._prepared = floats.permute(0, 2, 3, 1).contiguous().to(self.device)
        return self._prepared


def held_back(experiment: Experiment) -> Pictures:
    """The images held back for validation: as they are, since no client holds them."""
    images, index = experiment.images, experiment.validation
    return Pictures(images.train_x, index, images.train_y[index])
