"""What `fedloom list` can list: a sentence and a number each, known without importing torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedloom.cli import names


@dataclass(frozen=True)
class Kind:
    about: str
    names: Callable[[], names.Names]


KINDS = {
    "methods": Kind("parts of --method, and names of sums of them", names.methods),
    "models": Kind("nets of --model", names.models),
    "splits": Kind("terms of --split: who holds what, and what each client sees", names.splits),
    "data": Kind("data sets and forms of --data", lambda: {**names.data(), **names.data_forms()}),
    "metrics": Kind("of --metrics", names.metrics),
    "protocols": Kind("the papers' settings, for --protocol", names.protocols),
    "papers": Kind("papers whose tables `fedloom reproduce` can reproduce", names.papers),
}
