"""Figures of this kind of machine on record, to compare with. Reading them never fails: what cannot be read is not there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedloom.bench.figure import Effort, Figure
from fedloom.data.cache import root
from fedloom.engine.backends.fork import cores
from fedloom.io.files import read_json, write_json
from fedloom.runs.summary import processor


def machine(effort: Effort) -> dict[str, Any]:
    """What figures depend on beside the code: they are compared only where all of it is equal."""
    return {
        "processor": processor(),
        "cores": cores(),
        "torch": torch.__version__,
        "precision": effort.precision,
        "quick": effort.quick,
    }


def default_file() -> Path:
    return root() / "bench.json"


def read_stored(effort: Effort, path: Path | None) -> Mapping[str, float]:
    """Stored values by name; empty if there are none of this kind of machine."""
    stored = read_json(path or default_file())
    values = stored.get(_key(effort), {}) if isinstance(stored, dict) else {}
    if not isinstance(values, dict):
        return {}
    return {str(name): float(value) for name, value in values.items() if isinstance(value, int | float) and value > 0}


def save_stored(figures: Sequence[Figure], effort: Effort, path: Path | None) -> Path:
    """Replace the stored values of these figures; those of other machines and measurements stay."""
    place = path or default_file()
    before = read_json(place)
    stored = before if isinstance(before, dict) else {}
    values = {**read_stored(effort, path), **{figure.name: figure.value for figure in figures}}
    write_json(place, {**stored, _key(effort): values})
    return place


def speed_up(figure: Figure, stored: Mapping[str, float]) -> float | None:
    """How many times as fast as the stored figure; None if there is none."""
    if figure.name not in stored:
        return None
    ratio = figure.value / stored[figure.name]
    return ratio if figure.better == "higher" else 1 / ratio


def _key(effort: Effort) -> str:
    return json.dumps(machine(effort), sort_keys=True)
