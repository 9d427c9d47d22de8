"""What `--over` means: which values of which fields make a grid.

over(["lr=0.01,0.03", "epochs=1,5"])            -> 2 x 2 points
over(["method=fedavg,dr(beta=0.5)+fd", "seed=0,1,2"])   rows and seeds of the same grid
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.data import named_data
from fedloom.errors import FedloomError, shown
from fedloom.recipe import NO_EFFECT_FIELDS, Recipe


@dataclass(frozen=True)
class Grid:
    """Rows, seeds where they are listed, and swept values in the order given."""

    methods: list[str] | None
    seeds: list[int] | None
    points: dict[str, list[str]]


def grid(over: Sequence[str] | Mapping[str, Sequence[Any]]) -> Grid:
    """Parse `--over`; values are checked as a recipe's when the cells are planned."""
    swept: dict[str, list[str]] = {}
    for field, values in _read(over):
        if field in swept:
            raise FedloomError(f"over: {field} is given twice; give all its values at once, separated by commas")
        if not values or not all(values):
            raise FedloomError(f"over: {field} has an empty value; write {field}=VALUE,VALUE")
        if twice := [value for value in values if values.count(value) > 1]:
            raise FedloomError(f"over: {field}={twice[0]} is given twice")
        if field in NO_EFFECT_FIELDS:
            raise FedloomError(f"over: {field} has no effect on the result; set it with its own flag")
        if field.partition(".")[0] not in Recipe.model_fields:
            raise FedloomError(f"over: {field} is not a field of a recipe; known are {', '.join(Recipe.model_fields)}")
        swept[field] = values
    if not swept:
        raise FedloomError("over: nothing is swept; write for instance --over lr=0.01,0.03")
    seeds = swept.pop("seed", None)
    if seeds and not all(re.fullmatch(r"\d+", value) for value in seeds):
        raise FedloomError(f"over: seed must be whole numbers from 0 on (got {','.join(seeds)})")
    return Grid(swept.pop("method", None), [int(value) for value in seeds] if seeds else None, swept)


def _read(over: Sequence[str] | Mapping[str, Sequence[Any]]) -> list[tuple[str, list[str]]]:
    if isinstance(over, Mapping):
        return [(field, [_text(field, value) for value in values]) for field, values in over.items()]
    pairs = []
    for text in over:
        field, equals, values = text.partition("=")
        if not equals or not field.strip():
            raise FedloomError(f"over: cannot read {shown(text)}; write field=value,value")
        pairs.append((field.strip().replace("-", "_"), cut(values)))
    return pairs


def _text(field: str, value: Any) -> str:
    return str(named_data(value) if field in ("data", "data.name") else value)


def cut(text: str) -> list[str]:
    """Values separated by semicolons, or else by commas outside of brackets."""
    if ";" in text:
        return [value.strip() for value in text.split(";")]
    values, depth = [""], 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            values.append("")
        else:
            values[-1] += sign
    return [value.strip() for value in values]
