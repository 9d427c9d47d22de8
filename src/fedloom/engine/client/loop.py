"""The local loop: what a client does between broadcast and upload. Every method and every extra training run through it.

The loop is written once, over an interface with two implementations: one client that trains eagerly (`client.py`), and
several clients in one computation under vmap (`vmap.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from fedloom.engine.client.losses import Contexts
from fedloom.engine.client.optimizers import clip
from fedloom.engine.client.replica import Replica
from fedloom.methods.api.context import ClientContext, Phase, TrainSpec

B = TypeVar("B")  # a batch of one client, or batches of several clients side by side


@dataclass(frozen=True)
class Trained:
    """The slices of the weight vector that a phase trains, and whether any of them is shared."""

    slices: list[slice]
    shared: bool


class LocalLoop(ABC, Generic[B]):
    replica: Replica
    lr: float  # of the round

    def train(self, spec: TrainSpec, caller: ClientContext | None = None) -> None:
        """`caller`: the context of the part that asked for this training; None for a round's own."""
        for phase in spec.phases:
            trained = self.begin(phase, spec, caller)
            if not trained.slices:
                continue
            lr = self.lr if phase.lr is None else phase.lr
            for step, batch in enumerate(self.batches(phase, spec)):
                gradient = self.gradient(batch, trained, spec, caller)
                with torch.no_grad():
                    self.correct(gradient, batch, trained, spec, caller)
                    if self.replica.recipe.clip is not None:
                        clip(gradient, self.replica.recipe.clip)
                    self.optimizer_step(gradient, batch, trained, spec.rate(lr, step))
                if self.replica.followers and trained.shared and not spec.plain:
                    self.after_step(batch)
                if self.stops_early(step + 1):
                    break
            self.end(spec)

    def correct(
        self, gradient: list[Tensor], batch: B, trained: Trained, spec: TrainSpec, caller: ClientContext | None
    ) -> None:
        """Apply the corrections of the method's parts, then the spec's own, to the gradient of the shared weights."""
        corrections = () if spec.plain else self.replica.corrections
        if trained.shared and corrections:
            for contexts, shared in self.shared_gradients(batch, gradient, trained):
                for part in corrections:
                    part.correct_gradient(shared, contexts[part.name])
        if trained.shared and spec.correction is not None and caller is not None:
            for _, shared in self.shared_gradients(batch, gradient, trained):
                spec.correction(shared, caller)

    # what the two implementations do in their own way

    @abstractmethod
    def begin(self, phase: Phase, spec: TrainSpec, caller: ClientContext | None) -> Trained:
        """Prepare to train the regions of a phase."""

    @abstractmethod
    def batches(self, phase: Phase, spec: TrainSpec) -> Iterator[B]:
        """The shuffled batches of the phase's epochs."""

    @abstractmethod
    def gradient(self, batch: B, trained: Trained, spec: TrainSpec, caller: ClientContext | None) -> list[Tensor]:
        """The gradient of loss and regularizers, one tensor per slice; or the result of the one `gradient` hook."""

    @abstractmethod
    def shared_gradients(self, batch: B, gradient: list[Tensor], trained: Trained) -> Iterator[tuple[Contexts, Tensor]]:
        """For each client: its contexts, and the gradient of its shared weights, which may be changed in place."""

    @abstractmethod
    def optimizer_step(self, gradient: Sequence[Tensor], batch: B, trained: Trained, rate: float) -> None: ...

    def after_step(self, batch: B) -> None:
        """Call the hooks that follow a step; clients whose method has some are not vmapped."""

    def stops_early(self, steps: int) -> bool:
        return False

    def end(self, spec: TrainSpec) -> None:
        """A phase is over."""
