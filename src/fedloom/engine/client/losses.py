"""The method's loss on a batch: one part's loss or cross-entropy, then the regularizers in the order of the sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext, TrainSpec
from fedloom.methods.api.part import Method, Part

Contexts = Mapping[str, ClientContext]  # of one client, by part


@dataclass(frozen=True)
class MethodLoss:
    part: Part | None  # its `loss` replaces cross-entropy
    regularizers: tuple[Part, ...]

    @staticmethod
    def of(method: Method) -> MethodLoss:
        return MethodLoss(method.the("loss"), tuple(method.hooked("regularizer")))

    @property
    def parts(self) -> tuple[Part, ...]:
        return (*self.regularizers, *((self.part,) if self.part else ()))

    def only(self, *names: str) -> MethodLoss:
        """The loss with only these of its parts."""
        kept = self.part if self.part is not None and self.part.name in names else None
        return MethodLoss(kept, tuple(part for part in self.regularizers if part.name in names))

    def base(self, batch: Batch, contexts: Contexts) -> Tensor:
        """The loss without regularizers."""
        if self.part is None:
            return F.cross_entropy(batch.logits, batch.y)
        return self.part.loss(batch, contexts[self.part.name])

    def __call__(
        self, batch: Batch, contexts: Contexts, spec: TrainSpec | None, caller: ClientContext | None
    ) -> Tensor:
        """`spec`: the training that this is a step of, and `caller` the part that asked for it; None outside of training."""
        objective = "method" if spec is None else spec.objective
        if spec is not None and spec.loss is not None and caller is not None:
            return spec.loss(batch, caller)
        loss = F.cross_entropy(batch.logits, batch.y) if objective == "ce" else self.base(batch, contexts)
        for part in self.regularizers if objective == "method" else ():
            term, share = part.regularizer(batch, contexts[part.name]), part.mix_share()
            loss = loss + term if share is None else share * loss + (1 - share) * term
        if spec is not None and spec.regularizer is not None and caller is not None:
            loss = loss + spec.regularizer(batch, caller)
        return loss
