"""A trial as a row of tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrialRow:
    method: str
    trial: int  # the first, 0, is the setting without tuning
    values: Mapping[str, Any]
    state: str  # finished | stopped early | diverged
    rounds: int
    value: float | None  # of the headline metric on validation samples after its last round
    seconds: float
    folder: str
