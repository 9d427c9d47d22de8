"""What papers printed for the same setting: same data set, net, split and method.

published.json holds numbers of the papers' tables with the protocol they were made by, nothing else of them. Two sums are
the same method if their parts agree, and so do the hyper-parameters that make a part another method (`Part.variants`):
`sphere` and `sphere(loss=mse)` are two methods, `prox(mu=0.1)` and `prox(mu=0.01)` are one. All else (rates, epochs, rounds,
other hyper-parameters) may differ, and what does is listed beside each number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

from fedloom.data.splits import check_spec
from fedloom.errors import FedloomError
from fedloom.methods import Part, method

SETS = {"pacs64": "pacs"}  # our files' names -> the papers' sets
LISTS = {"measure": "measures", "protocol": "protocols"}  # columns that are not texts
ALTERNATIVE = " | "  # between splits or sums that a number may be compared with; the first is the published one

Row = dict[str, Any]


@cache
def _stored() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads((files("fedloom.report") / "published.json").read_text(encoding="utf-8"))
    return kept


@cache
def rows() -> list[Row]:
    kept, numbers = _stored(), ("value", "deviation")
    return [
        {
            name: item if name in numbers or item is None else kept[LISTS.get(name, "strings")][item]
            for name, item in zip(kept["columns"], row, strict=True)
        }
        for row in kept["rows"]
    ]


def notes(papers: Iterable[str]) -> dict[str, str]:
    """How each of these papers trained and tested."""
    return {paper: _stored()["notes"][paper] for paper in dict.fromkeys(papers)}


def matching(fields: Mapping[str, Any], text: str) -> list[Row]:
    """Published rows for a recipe with this method, each with `differs`: what of its protocol is otherwise in the recipe.

    Of a table that sweeps something, such as rate and epochs: the rows with the recipe's values, else its best.
    """
    try:
        ours, settings = canonical(text), {**fields, **_hyper_parameters(text)}
    except FedloomError:  # a part of the user's own, which no paper has
        return []
    name = re.sub(r"\.npz$", "", str(fields.get("data.name", ""))).rsplit("/", 1)[-1].lower()
    data, split = SETS.get(name, name), _split(str(fields.get("split", "")))
    groups: dict[str, list[Row]] = {}
    for row in rows():
        same = (row["data"], row["model"]) == (data, fields.get("model")) and ours in _sums(row["sums"])
        if same and any(fnmatchcase(split, pattern) for pattern in row["split"].split(ALTERNATIVE)):
            key = [row[name] for name in ("paper", "table", "method", "sums", "split", "measure")]
            groups.setdefault(json.dumps(key), []).append(row)
    chosen = [one for group in groups.values() for one in _chosen(group, settings)]
    return [{**row, "differs": _differences(row, settings, split)} for row in chosen]


def canonical(text: str) -> str:
    """The method that a sum is: its parts by name, with no hyper-parameter but those that make another method."""
    return " + ".join(sorted(_variant(part) for part in method(text).parts)) or "fedavg"


def _variant(part: Part) -> str:
    return str(type(part)(**{name: getattr(part, name) for name in part.variants})) if part.variants else part.name


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
    names = dict.fromkeys(name for told in protocols for name in told)
    swept = [name for name in names if len({str(told.get(name)) for told in protocols}) > 1]
    same = [row for row in group if all(_equal(settings.get(name), row["protocol"].get(name)) for name in swept)]
    if same:
        return [{**row, "best_of": 1} for row in same]
    return [{**max(group, key=lambda row: float(row["value"])), "best_of": len(group)}]


def _differences(row: Row, settings: Mapping[str, Any], split: str) -> list[str]:
    told = [
        f"{name} {_text(settings[name])} (published {_text(value)})"
        for name, value in row["protocol"].items()
        if name in settings and not _equal(settings[name], value)
    ]
    if not row["protocol"]:
        told = ["unknown, since no protocol is printed for this row"]
    published = row["split"].split(ALTERNATIVE)[0]
    return told if fnmatchcase(split, published) else [f"split {split} (published {published})", *told]


def _equal(ours: Any, published: Any) -> bool:
    if ours is None or published is None or isinstance(published, str):
        return bool(ours == published)
    try:
        return float(ours) == float(published)
    except (TypeError, ValueError):
        return False


def _text(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)
