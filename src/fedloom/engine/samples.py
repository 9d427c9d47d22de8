"""Some training images as a client works through them: shuffled, augmented, in whole batches."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedloom.engine.batches import cut
from fedloom.engine.setup import Experiment

PREPARED_BYTES = 64 << 20  # images are turned into floats once a job if they need no more than this

XY = tuple[Tensor, Tensor]


class Samples:
    """The training images with these indices; draws come from the generator that is given."""

    def __init__(self, experiment: Experiment, index: Tensor, device: str, alone: bool) -> None:
        self.experiment, self.index, self.device, self.alone = experiment, index, device, alone
        self.y = experiment.images.train_y[index].to(device)
        self.batch_size = len(index) if experiment.recipe.batch == "full" else experiment.recipe.batch
        self._prepared: Tensor | None = None
        self._counts: Tensor | None = None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def counts(self) -> Tensor:
        """(C,) samples of each class."""
        if self._counts is None:
            self._counts = torch.bincount(self.y, minlength=self.experiment.images.classes).float()
        return self._counts

    def epoch(self, generator: torch.Generator) -> Iterator[XY]:
        order = torch.randperm(len(self), generator=generator)
        for stretch in cut(len(self), self.batch_size, self.alone):
            yield self.batch(order[stretch], generator)

    def draw(self, generator: torch.Generator) -> XY:
        """One batch of its own."""
        return self.batch(torch.randperm(len(self), generator=generator)[: self.batch_size], generator)

    def over(self) -> Iterator[XY]:
        """All of them once, in order, as for evaluation."""
        for stretch in cut(len(self), self.experiment.recipe.eval_batch, self.alone):
            yield self.batch(torch.arange(stretch.start, stretch.stop), None)

    def batch(self, chosen: Tensor, generator: torch.Generator | None) -> XY:
        """These of the samples; augmented by the generator's draws where there is one and the recipe says so."""
        images, pipeline = self.experiment.images, self.experiment.pipeline
        if generator is not None and pipeline.augment != "none":
            return pipeline(images.train_x[self.index[chosen]], generator).to(self.device), self.y[chosen]
        if self._prepared is None and len(self) * images.train_x[0].numel() * 4 <= PREPARED_BYTES:
            floats = pipeline(images.train_x[self.index], None)
            self._prepared = floats.permute(0, 2, 3, 1).contiguous().to(self.device)  # N,H,W,C: rows are whole images
        if self._prepared is None:
            return pipeline(images.train_x[self.index[chosen]], None).to(self.device), self.y[chosen]
        return self._prepared[chosen].permute(0, 3, 1, 2), self.y[chosen]
