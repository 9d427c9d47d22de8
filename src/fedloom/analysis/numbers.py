"""Numbers that may be missing: NaN in memory, null in JSON, an empty cell in CSV."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def mean(values: Iterable[float]) -> float:
    """The mean of all values that are not NaN; NaN if there are none."""
    known = np.asarray([value for value in values if not math.isnan(value)], dtype=np.float64)
    return float(known.mean()) if len(known) else float("nan")


def to_json(value: Any) -> Any:
    """Numbers that are not finite become None, numpy values become Python values."""
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [to_json(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
