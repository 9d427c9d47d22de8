"""What a measurement returns, and how long it may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Effort:
    """`seconds`: time for each workload. `quick`: fewer repetitions, and nothing that takes minutes."""

    seconds: float
    precision: str = "fp32"
    quick: bool = False


@dataclass(frozen=True)
class Figure:
    name: str
    title: str
    value: float
    unit: str
    better: Literal["higher", "lower"] = "higher"
    columns: Mapping[str, str] = field(default_factory=dict)  # printable details

    def __str__(self) -> str:
        return f"{self.value:,.0f}" if self.value >= 100 else f"{self.value:.3g}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
