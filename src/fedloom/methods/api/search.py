"""Where `fedloom tune` searches by default: ranges of hyper-parameters, and how a loss changes the rate that suits it.

search_ranges = {"mu": Span(0.001, 1, log=True, source="Li et al. 2020 try 0.001, 0.01, 0.1 and 1")}
rate_scale = RateScale(10, 50, source="Kim et al. 2024: 0.35 where cross-entropy takes 0.01")
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

from fedloom.errors import FedloomError


@dataclass(frozen=True)
class Span:
    """All numbers from `low` to `high`; whole ones if both ends are. `log`: uniform in their logarithm.

    >>> str(fl.Span(0.003, 3.0, log=True))
    'log:0.003..3'
    """

    low: float
    high: float
    log: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high)) or self.low >= self.high:
            raise FedloomError(f"a range goes from a number to a larger one (got {self.low}..{self.high})")
        if self.log and self.low <= 0:
            raise FedloomError(f"a logarithmic range begins above 0 (got {self.low}..{self.high})")

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __str__(self) -> str:
        return f"{'log:' if self.log else ''}{self.low:g}..{self.high:g}"


@dataclass(frozen=True)
class Choices:
    """One of these values.

    >>> str(fl.Choices((1, 2, 5)))
    '1,2,5'
    """

    values: tuple[Any, ...]
    source: str = ""

    def __str__(self) -> str:
        return ",".join(str(value) for value in self.values)


Range: TypeAlias = Span | Choices


@dataclass(frozen=True)
class RateScale:
    """The rate of SGD that suits a part is `least` to `most` times that of plain cross-entropy.

    >>> fl.RateScale(1, 4).middle
    2.0
    """

    least: float
    most: float
    source: str = ""

    @property
    def middle(self) -> float:
        return math.sqrt(self.least * self.most)


PLAIN = RateScale(1, 1)
