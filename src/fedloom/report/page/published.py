"""Numbers that papers printed for the same setting: the same data set, net, split and method.

The numbers and their protocols are those of `fedloom.papers`. Two sums are the same method if their parts agree and the
hyper-parameters that make a part another method do (`Part.variants`): `sphere` and `sphere(loss=mse)` are two methods,
`prox(mu=0.1)` and `prox(mu=0.01)` are one. Everything else (learning rate, epochs, rounds, other hyper-parameters) may
differ, and the differences are listed with each number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from fedloom.data.split import check_spec
from fedloom.errors import FedloomError
from fedloom.methods import method
from fedloom.papers.rows import ALTERNATIVE, Row, canonical, notes, rows

__all__ = ["ALTERNATIVE", "canonical", "matching", "notes", "rows"]

SETS = {"pacs64": "pacs"}  # our file names -> the papers' data sets


def matching(fields: Mapping[str, Any], text: str) -> list[Row]:
    """Published rows for a recipe with this method, each with `differs`: where the recipe departs from its protocol.

    If a table sweeps fields such as lr and epochs: the rows with the recipe's values, or else the best row.
    """
    try:
        ours, settings = canonical(text), {**fields, **_hyper_parameters(text)}
    except FedloomError:  # a user's own part
        return []
    name = re.sub(r"\.npz$", "", str(fields.get("data.name", ""))).rsplit("/", 1)[-1].lower()
    data, split = SETS.get(name, name), _split(str(fields.get("split", "")))
    model = str(fields.get("model", "")).partition("(")[0]
    groups: dict[str, list[Row]] = {}
    for row in rows():
        same = (row["data"], row["model"]) == (data, model) and ours in _sums(row["sums"])
        if same and any(fnmatchcase(split, pattern) for pattern in row["split"].split(ALTERNATIVE)):
            key = [row[name] for name in ("paper", "table", "method", "sums", "split", "measure")]
            groups.setdefault(json.dumps(key), []).append(row)
    chosen = [one for group in groups.values() for one in _chosen(group, settings)]
    return [{**row, "differs": _differences(row, settings, split)} for row in chosen]


@cache
def _sums(text: str) -> frozenset[str]:
    return frozenset(canonical(one) for one in text.split(ALTERNATIVE))


def _hyper_parameters(text: str) -> dict[str, Any]:
    return {f"{p.name}.{name}": value for p in method(text).parts for name, value in p.model_dump().items()}


def _split(text: str) -> str:
    try:
        return check_spec(text)
    except FedloomError:
        return text


def _chosen(group: list[Row], settings: Mapping[str, Any]) -> list[Row]:
    protocols = [row["protocol"] for row in group]
    names = dict.fromkeys(name for protocol in protocols for name in protocol)
    swept = [name for name in names if len({str(protocol.get(name)) for protocol in protocols}) > 1]
    same = [row for row in group if all(_equal(settings.get(name), row["protocol"].get(name)) for name in swept)]
    if same:
        return [{**row, "best_of": 1} for row in same]
    return [{**max(group, key=lambda row: float(row["value"])), "best_of": len(group)}]


def _differences(row: Row, settings: Mapping[str, Any], split: str) -> list[str]:
    differences = [
        f"{name} {_text(settings[name])} (published {_text(value)})"
        for name, value in row["protocol"].items()
        if name in settings and not _equal(settings[name], value)
    ]
    if not row["protocol"]:
        differences = ["unknown, since no protocol is printed for this row"]
    published = row["split"].split(ALTERNATIVE)[0]
    if fnmatchcase(split, published):
        return differences
    return [f"split {split} (published {published})", *differences]


def _equal(ours: Any, published: Any) -> bool:
    if ours is None or published is None or isinstance(published, str):
        return bool(ours == published)
    try:
        return float(ours) == float(published)
    except (TypeError, ValueError):
        return False


def _text(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)
