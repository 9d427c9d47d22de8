"""A batch in the local loop: its samples, and the outputs of the net and of teachers, each computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from fedloom.engine.client.feature_memo import FeatureMemo, TeacherKey
from fedloom.errors import FedloomError


class BodyAndHead(Protocol):
    """A net, or a net that is called with other weights than its own."""

    @property
    def staged(self) -> bool: ...
    def staged_features(self, x: Tensor) -> tuple[Tensor, list[Tensor]]: ...
    def features(self, x: Tensor) -> Tensor: ...
    def head(self, features: Tensor) -> Tensor: ...
    def get_submodule(self, target: str) -> Callable[[Tensor], Tensor]: ...


class TeacherOutputs:
    """The outputs of a model on a batch, without gradient: features at once, logits on first access.

    `features`: those of this batch, where they are known.
    """

    def __init__(self, model: BodyAndHead, x: Tensor, features: Tensor | None = None) -> None:
        self._model = model
        with torch.no_grad():
            self.features = model.features(x) if features is None else features
        self._logits: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        if self._logits is None:
            with torch.no_grad():
                self._logits = self._model.head(self.features)
        return self._logits


class LocalBatch:
    """The forward pass is made once, on first access to features or logits. `learning`: whether gradients are recorded.

    `memo`: where teachers' features of these samples are kept for later epochs. `fixed`: the net's features, where its body
    stays as it is.
    """

    def __init__(
        self,
        model: BodyAndHead,
        x: Tensor,
        y: Tensor,
        index: Tensor,
        learning: bool = True,
        memo: FeatureMemo | None = None,
        fixed: Tensor | None = None,
    ) -> None:
        self.x, self.y, self.index, self.learning, self.memo = x, y, index, learning, memo
        self.teachers: dict[TeacherKey, TeacherOutputs] = {}
        self._model = model
        self._fixed = self._features = fixed
        self._logits: Tensor | None = None
        self._stages: list[Tensor] = []

    def anew(self, fixed: Tensor | None = None) -> LocalBatch:
        """The same samples for another forward pass that records gradients."""
        fixed = self._fixed if fixed is None else fixed
        return LocalBatch(self._model, self.x, self.y, self.index, memo=self.memo, fixed=fixed)

    @property
    def features(self) -> Tensor:
        if self._features is None:
            with torch.set_grad_enabled(self.learning):
                if self._model.staged:
                    self._features, self._stages = self._model.staged_features(self.x)
                else:
                    self._features = self._model.features(self.x)
        return self._features

    @property
    def stages(self) -> list[Tensor]:
        if not self._model.staged:
            raise FedloomError("method: a part that reads batch.stages has to say so by `uses_stages`")
        assert self.features is not None  # computes them
        return self._stages

    @property
    def logits(self) -> Tensor:
        if self._logits is None:
            with torch.set_grad_enabled(self.learning):
                self._logits = self._model.head(self.features)
        return self._logits

    def head(self, features: Tensor) -> Tensor:
        return self._model.head(features)

    def module(self, name: str, value: Tensor) -> Tensor:
        return self._model.get_submodule(name)(value)
