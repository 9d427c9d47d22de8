"""Alternating fine-tuning: `fedloom personalize --part alternate` trains pieces of the net in turns.

Every method alternates between head and body, an epoch each, as FedRep does in training. A part whose paper publishes another
order declares it in `Part.alternation`. The optimizer starts anew with each turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, cycle
from typing import Protocol

from fedloom.methods.api.context import Objective
from fedloom.weights import BEFORE_HEAD, Regions


@dataclass(frozen=True)
class Turn:
    """Some epochs in a row that train the same tensors.

    `rate`: times the rate of the fine-tuning. `objective`: in place of the one that was asked for. `plain`: SGD without
    momentum and weight decay, whatever the recipe's optimizer is. `fixed`: also tensors that the method fixes for good.
    """

    name: str  # in the file of the curve
    train: tuple[str, ...]  # regions, or tensors and modules by name
    epochs: int = 1
    rate: float = 1.0
    objective: Objective | None = None
    plain: bool = False
    fixed: bool = False

    def tensors(self, regions: Regions) -> list[str]:
        """Names of the parameters that it trains."""
        return [
            name
            for name in regions.select(*self.train)
            if name not in regions.statistics and (self.fixed or name not in regions.constant)
        ]


@dataclass(frozen=True)
class Alternation:
    """`first` once, then `turns` again and again."""

    turns: tuple[Turn, ...]
    first: tuple[Turn, ...] = ()

    def __iter__(self) -> Iterator[Turn]:
        """Turn after turn, without end."""
        return chain(self.first, cycle(self.turns))

    def epochs(self, count: int) -> list[Turn]:
        """The turn that each of this number of epochs belongs to; epochs of one turn are the same object."""
        each: list[Turn] = []
        for turn in self:
            each += [turn] * turn.epochs
            if len(each) >= count:
                break
        return each[:count]


HEAD_AND_BODY = Alternation((Turn("head", ("head",)), Turn("body", BEFORE_HEAD)))


class Alternating(Protocol):
    @property
    def alternation(self) -> Alternation | None: ...


def alternation_of(parts: Iterable[Alternating]) -> Alternation:
    """That of the part that declares one, else head and body."""
    return next((part.alternation for part in parts if part.alternation is not None), HEAD_AND_BODY)
