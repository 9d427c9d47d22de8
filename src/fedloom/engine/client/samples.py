"""Training samples as a client iterates over them: shuffled, augmented, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from time import perf_counter

import torch
from torch import Tensor

from fedloom.data import LabeledSamples, Pipeline
from fedloom.engine.client.batches import cut
from fedloom.engine.experiment import Experiment
from fedloom.engine.timing import Preparing
from fedloom.methods.api.context import Phase

PREPARED_BYTES = 64 << 20  # up to this size, images are converted to floats once per task

SampleBatch = tuple[Tensor, Tensor, Tensor]  # inputs, labels, their indices among the samples


class Samples:
    """`pipeline`: transforms of these samples, if not the experiment's. `alone`: a batch may hold a single sample."""

    def __init__(
        self,
        experiment: Experiment,
        labeled: LabeledSamples,
        device: str,
        alone: bool,
        pipeline: Pipeline | None = None,
    ) -> None:
        self.experiment, self.device, self.alone = experiment, device, alone
        self.x, self.rows, self.y = labeled.x, labeled.rows, labeled.y.to(device)
        self.pipeline = pipeline or experiment.data.pipeline
        self.batch_size = len(self.rows) if experiment.recipe.batch == "full" else experiment.recipe.batch
        self._prepared: Tensor | None = None
        self._counts: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def counts(self) -> Tensor:
        """(C,) number of samples of each class."""
        if self._counts is None:
            self._counts = torch.bincount(self.y, minlength=self.experiment.data.dataset.classes).float()
        return self._counts

    def epoch(self, generator: torch.Generator, size: int | None = None) -> Iterator[SampleBatch]:
        for chosen in self.orders(generator, size):
            yield self.batch(chosen, generator)

    def work(self, generator: torch.Generator, phase: Phase) -> Iterator[SampleBatch]:
        """The batches of a phase: its epochs or its steps."""
        if phase.steps:
            yield from self.stream(generator, phase.steps)
        else:
            for _ in range(phase.epochs):
                yield from self.epoch(generator)

    def stream(self, generator: torch.Generator, steps: int, size: int | None = None) -> Iterator[SampleBatch]:
        """This many batches, epoch after epoch; none without samples."""
        epochs = (self.epoch(generator, size) for _ in count()) if len(self) else ()
        return islice((batch for epoch in epochs for batch in epoch), steps)

    def work_orders(self, generator: torch.Generator, phase: Phase) -> list[Tensor]:
        """The indices of the samples in each batch of `work`; for samples that draw nothing but their order."""
        orders: list[Tensor] = []
        for _ in range(phase.epochs if not phase.steps else phase.steps if len(self) else 0):
            orders += self.orders(generator)
            if 0 < phase.steps <= len(orders):
                return orders[: phase.steps]
        return orders

    def orders(self, generator: torch.Generator, size: int | None = None) -> Iterator[Tensor]:
        """The indices of the samples in each batch of one shuffled epoch."""
        began = perf_counter()
        order = torch.randperm(len(self), generator=generator)
        Preparing.since(began)
        for stretch in cut(len(self), size or self.batch_size, self.alone):
            yield order[stretch]

    def draw(self, generator: torch.Generator) -> SampleBatch:
        """One random batch."""
        return self.batch(torch.randperm(len(self), generator=generator)[: self.batch_size], generator)

    def in_order(self, order: Tensor | None = None) -> Iterator[SampleBatch]:
        """All samples once, without augmentation, in batches for evaluation; or these, in this order, as in training."""
        size = self.experiment.recipe.eval_batch if order is None else self.batch_size
        order = torch.arange(len(self)) if order is None else order
        for stretch in cut(len(order), size, self.alone):
            yield self.batch(order[stretch], None)

    def batch(self, chosen: Tensor, generator: torch.Generator | None) -> SampleBatch:
        """The samples with these indices; augmented with a generator's draws, if one is given and the recipe asks for it."""
        began = perf_counter()
        batch = self._batch(chosen, generator)
        Preparing.since(began)
        return batch

    def _batch(self, chosen: Tensor, generator: torch.Generator | None) -> SampleBatch:
        if generator is not None and self.pipeline.augment != "none":
            return self.pipeline(self.x[self.rows[chosen]], generator).to(self.device), self.y[chosen], chosen
        if self._prepared is None and len(self) * self.x[0].numel() * 4 > PREPARED_BYTES:
            return self.pipeline(self.x[self.rows[chosen]], None).to(self.device), self.y[chosen], chosen
        return self.pipeline.inputs(self.prepared()[chosen]), self.y[chosen], chosen

    def prepared(self) -> Tensor:
        """All samples without augmentation, as rows of the pipeline."""
        if self._prepared is None:
            self._prepared = self.pipeline.rows(self.x[self.rows]).to(self.device)
        return self._prepared


def held_back(experiment: Experiment) -> LabeledSamples:
    """The samples held back for validation, as they are in the data set."""
    dataset, index = experiment.data.dataset, experiment.data.validation
    return LabeledSamples(dataset.train_x, index, dataset.train_y[index])
