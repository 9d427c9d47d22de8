"""The settings that a tuning chose, on seeds that it never saw: what `compare --tuned FOLDER` runs.

fresh("runs/tune", None, 5, {}).rows     -> ["fedavg @ lr=0.1", "dr + fd(beta=0.9) @ lr=0.31"], on seeds 1 to 5 if tuning saw 0

Validation samples are given back to the clients: once the settings are chosen nothing is selected any more, and a final
number is that of a model which has learned from all training data, as in the papers. `data.validation` keeps them held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError, shown
from fedloom.methods import method
from fedloom.recipe import NAMED_GROUPS, NO_EFFECT_FIELDS, recipe
from fedloom.runs.labels import without_unknown
from fedloom.studies.tune.chosen import ChosenSettings, Tuned, read

OWN = ("method", "seed", "name", "out", "eval_test")  # fields that a comparison decides for itself


@dataclass(frozen=True)
class Tuning:
    """Where the settings of a comparison's rows come from."""

    folder: Path
    tuned: Tuned
    chosen: Mapping[str, ChosenSettings]  # by row; other rows were not tuned
    diverged: tuple[ChosenSettings, ...]  # methods without any setting that trained
    changed: tuple[str, ...]  # fields that differ from the tuning's recipe
    validation: float  # share of the training samples that is held out now


@dataclass(frozen=True)
class FreshSeeds:
    """What is compared: rows and seeds of `plan`, the fields of the recipe, and default display names."""

    rows: list[str]
    seeds: list[int]
    fields: dict[str, Any]
    names: dict[str, str]
    tuning: Tuning


def fresh(
    folder: str | Path, methods: Sequence[str] | None, seeds: int | Sequence[int], given: Mapping[str, Any]
) -> FreshSeeds:
    """`methods`: some of the tuned ones, and others as they are (default: all tuned ones). `given`: fields that override."""
    tuned = read(folder)
    if "protocol" in given:
        raise FedloomError(
            "protocol: the recipe is that of the tuning; leave out --protocol, or override single fields"
        )
    base = {name: value for name, value in tuned.recipe.items() if name not in OWN}
    fields = merged(merged(base, {"data": {"validation": 0.0}}), given)
    picked = [*tuned.methods] if methods is None else [_tuned(text.strip(), tuned) for text in methods if text.strip()]
    chosen = {item.row: item for item in picked if isinstance(item, ChosenSettings) and item.sum is not None}
    diverged = tuple(item for item in picked if isinstance(item, ChosenSettings) and item.sum is None)
    rows = [item if isinstance(item, str) else item.row for item in picked if item not in diverged]
    if not rows:
        raise FedloomError(f"tuned: in {folder} every trial of {'; '.join(d.method for d in diverged)} diverged")
    made = recipe(fields)
    tuning = Tuning(Path(folder), tuned, chosen, diverged, _changed(base, fields), float(made.data.validation))
    return FreshSeeds(rows, _unseen(seeds, made.seed, tuned.seeds), fields, _names(rows, tuning), tuning)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields overridden by others, inside of groups too."""
    fields = dict(base)
    for name, value in changes.items():
        before = fields.get(name)
        if name in NAMED_GROUPS and isinstance(before, str):
            before = {"name": before}
        if name in NAMED_GROUPS and isinstance(value, str):
            value = {"name": value}
        fields[name] = merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return fields


def _tuned(row: str, tuned: Tuned) -> ChosenSettings | str:
    """What tuning chose for a method, or the row as it is."""
    for item in tuned.methods:
        if "".join(row.split()) in ("".join(text.split()) for text in (item.method, without_unknown(item.method))):
            return item
    if "@" in row or "(" in row:
        return row
    wanted = method(row).spelled()
    known = [item for item in tuned.methods if "@" not in item.method]
    return next((item for item in known if method(without_unknown(item.method)).spelled() == wanted), row)


def _unseen(seeds: int | Sequence[int], first: int, seen: Sequence[int]) -> list[int]:
    if isinstance(seeds, int):
        if seeds < 1:
            raise FedloomError(f"seeds: must be 1 or more (got {seeds})")
        return list(islice((seed for seed in count(first) if seed not in seen), seeds))
    if again := [seed for seed in seeds if seed in seen]:
        raise FedloomError(f"seeds: tuning saw seed {shown(again[0])}; choose others than {', '.join(map(str, seen))}")
    return list(seeds)


def _changed(base: Mapping[str, Any], fields: Mapping[str, Any]) -> tuple[str, ...]:
    before, now = _flat(base), _flat(fields)
    return tuple(f"{name}={now[name]} (tuned with {before[name]})" for name in now if now[name] != before[name])


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Every field that decides the result, one level deep."""
    flat: dict[str, Any] = {}
    for name, value in recipe(fields).model_dump(exclude={*NO_EFFECT_FIELDS, *OWN, "deploy"}).items():
        flat |= {f"{name}.{inner}": item for inner, item in value.items()} if isinstance(value, dict) else {name: value}
    return {name: value for name, value in flat.items() if not name.startswith("data.validation")}


def _names(rows: Sequence[str], tuning: Tuning) -> dict[str, str]:
    """Tuned methods as they were written, without what was tuned, as far as that names one row only."""
    written = {row: item.method for row, item in tuning.chosen.items()}
    written |= {item.method: item.method for item in tuning.diverged}
    short = {row: without_unknown(text) for row, text in written.items()}
    taken = [*short.values(), *(row for row in rows if row not in short)]
    return {row: name if taken.count(name) == 1 else written[row] for row, name in short.items()}
