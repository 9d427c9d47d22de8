"""What `fedloom list` can list: a sentence and a number each, known without importing torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedloom.cli import names


@dataclass(frozen=True)
class Kind:
    noun: str
    about: str
    names: Callable[[], names.Names]


KINDS = {
    "methods": Kind("method", "parts for --method, and names of sums of them", names.methods),
    "models": Kind("model", "nets for --model", names.models),
    "splits": Kind("split", "terms for --split: who holds what, and what each client sees", names.splits),
    "data": Kind("data set", "data sets and forms for --data", lambda: {**names.data(), **names.data_forms()}),
    "metrics": Kind("metric", "what --metrics can measure", names.metrics),
    "protocols": Kind("protocol", "the papers' settings, for --protocol", names.protocols),
    "papers": Kind("paper", "papers whose tables `fedloom reproduce` can reproduce", names.papers),
}
