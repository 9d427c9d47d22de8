"""FEMNIST's word for natural clients: one writer per client. The same partition as `natural`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.data.partition.natural import Natural
from fedloom.data.scheme import register


@register
@dataclass(frozen=True)
class Writers(Natural):
    name: ClassVar[str] = "writers"
    summary: ClassVar[str] = (
        "natural clients: one writer per client; a random sample if there are more writers than clients"
    )
    paper: ClassVar[str] = "Caldas et al. 2018"
    example: ClassVar[str] = "writers"
    noun: ClassVar[str] = "writer"
