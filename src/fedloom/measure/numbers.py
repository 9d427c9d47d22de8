"""Numbers that may be unknown: NaN inside, null in JSON, an empty cell in CSV."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def mean(values: Iterable[float]) -> float:
    """Of what is known; NaN if nothing is."""
    known = np.asarray([value for value in values if not math.isnan(value)], dtype=np.float64)
    return float(known.mean()) if len(known) else float("nan")


def plain(value: Any) -> Any:
    """For JSON: unknown and infinite numbers become null, numpy's become Python's."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
