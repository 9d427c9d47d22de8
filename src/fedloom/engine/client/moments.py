"""What a local optimizer remembers of earlier steps: of one client as vectors, of several side by side as rows.

SGD has one number per weight, the momentum buffer. Adam has two, the means of gradients and of their squares, and for every
tensor the number of its steps, since phases may train some tensors and not others. All of it starts at zero in each round,
unless `optimizer.keep` makes it part of the client's state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.engine.optimizer_state import FIRST, MOMENTUM, SECOND, STEPS, trained_names
from fedloom.weights import Layout


@dataclass
class StepGroup:
    """Tensors that have made the same number of steps."""

    names: list[str]
    slices: list[slice]  # of the weight vector
    done: Tensor  # (), or (clients,)


class Moments:
    """`like`: the weights, of which there is a moment each. `adaptive`: with second moments, for Adam."""

    def __init__(self, layout: Layout, like: Tensor, adaptive: bool) -> None:
        self.layout, self.names = layout, trained_names(layout)
        self.first = torch.zeros_like(like)
        self.second = torch.zeros_like(like) if adaptive else None
        # the numbers of steps by tensor; at first only of those that the method trains, fine-tuning adds others
        self.steps: dict[str, Tensor] = {}
        self.used = False  # whether any of them may differ from zero
        self._rows = like.shape[:-1]

    def reset(self) -> None:
        if self.used:
            self.first.zero_()
            if self.second is not None:
                self.second.zero_()
        self.used = False
        self.steps.clear()

    def snapshot(self) -> Moments:
        copied = Moments.__new__(Moments)
        copied.__dict__.update(self.__dict__)
        copied.first, copied.steps = self.first.clone(), dict(self.steps)
        copied.second = None if self.second is None else self.second.clone()
        return copied

    def restore(self, snapshot: Moments) -> None:
        self.first.copy_(snapshot.first)
        if self.second is not None and snapshot.second is not None:
            self.second.copy_(snapshot.second)
        self.used, self.steps = snapshot.used, dict(snapshot.steps)

    # numbers of steps

    def groups(self, names: Sequence[str]) -> list[StepGroup]:
        """These tensors, grouped by the number of steps that they have made."""
        groups: list[tuple[list[str], Tensor]] = []
        wanted = set(names)
        for name in (entry for entry in self.layout.entries if entry in wanted):
            done = self.steps.get(name)
            done = torch.zeros(self._rows, dtype=torch.int64) if done is None else done
            same = next((inside for inside, other in groups if torch.equal(other, done)), None)
            if same is None:
                groups.append(([name], done.clone()))
            else:
                same.append(name)
        return [StepGroup(inside, self.layout.slices(inside), done) for inside, done in groups]

    def count(self, groups: Sequence[StepGroup]) -> None:
        """The groups have moved on."""
        for group in groups:
            for name in group.names:
                self.steps[name] = group.done.clone()

    # a client's state

    def load(self, state: Mapping[str, Tensor], row: int | None = None) -> None:
        """Continue from what the client kept; nothing changes if it keeps nothing."""
        first, second = self._of(row)
        trained = self.layout.trained
        self.used |= MOMENTUM in state or FIRST in state
        if MOMENTUM in state:
            first[:trained].copy_(state[MOMENTUM])
        if FIRST in state and second is not None:
            first[:trained].copy_(state[FIRST])
            second[:trained].copy_(state[SECOND])
            for name, done in zip(self.names, state[STEPS], strict=True):
                self._done(name, row).copy_(done)

    def save(self, state: Mapping[str, Tensor], row: int | None = None) -> None:
        first, second = self._of(row)
        trained = self.layout.trained
        if MOMENTUM in state:
            state[MOMENTUM].copy_(first[:trained])
        if FIRST in state and second is not None:
            state[FIRST].copy_(first[:trained])
            state[SECOND].copy_(second[:trained])
            state[STEPS].copy_(torch.stack([self._done(name, row) for name in self.names]))

    def _of(self, row: int | None) -> tuple[Tensor, Tensor | None]:
        if row is None:
            return self.first, self.second
        return self.first[row], None if self.second is None else self.second[row]

    def _done(self, name: str, row: int | None) -> Tensor:
        if name not in self.steps:
            self.steps[name] = torch.zeros(self._rows, dtype=torch.int64)
        return self.steps[name] if row is None else self.steps[name][row]
