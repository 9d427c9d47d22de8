"""Runs that differ only in their seed are one series: a row of the table, a line of each figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.report.gather import ASIDE, Found


@dataclass(frozen=True)
class Series:
    label: str
    runs: list[Found]


def group(runs: Sequence[Found]) -> list[Series]:
    """Series in order of appearance, each with a name that tells it from the others."""
    groups: dict[str, list[Found]] = {}
    for run in runs:
        groups.setdefault(run.identity, []).append(run)
    members = list(groups.values())
    labels = _labels(members)
    counts = Counter(labels)
    named = [
        label if counts[label] == 1 else f"{label} ({found[0].path.name})"
        for label, found in zip(labels, members, strict=True)
    ]
    return [Series(label, found) for label, found in zip(named, members, strict=True)]


def _labels(members: Sequence[Sequence[Found]]) -> list[str]:
    """The method, and as few other fields as tell all series apart."""
    left = [field for field in differences(members) if field != "method"]
    words: list[list[str]] = [[found[0].method] for found in members]
    if len({found[0].method for found in members}) == 1 and left:
        words = [[] for _ in members]
    while left and len({tuple(told) for told in words}) < len(members):
        added = {f: [*zip(map(tuple, words), (_text(m[0].fields.get(f)) for m in members), strict=True)] for f in left}
        field = max(left, key=lambda f: len(set(added[f])))
        left.remove(field)
        for told, found in zip(words, members, strict=True):
            told.append(f"{field.removeprefix('data.')}={_text(found[0].fields.get(field))}")
    return [", ".join(told) for told in words]


def differences(groups: Sequence[Sequence[Found]]) -> list[str]:
    """Fields of the recipe that are not the same in all series."""
    fields = dict.fromkeys(field for found in groups for field in found[0].fields)
    known = [field for field in fields if field not in ASIDE and field != "seed"]
    return [field for field in known if len({_text(found[0].fields.get(field)) for found in groups}) > 1]


def recipe_table(series: Sequence[Series]) -> dict[str, Any]:
    """What was run: differences first, then what all share."""
    groups = [item.runs for item in series]
    apart = differences(groups)
    if not groups:
        return {"apart": [], "shared": []}
    fields = dict.fromkeys(field for found in groups for field in found[0].fields)
    shared = [field for field in fields if field not in apart and field not in (*ASIDE, "seed")]
    return {
        "apart": [{"field": f, "values": [_text(found[0].fields.get(f)) for found in groups]} for f in apart],
        "shared": [{"field": f, "value": _text(groups[0][0].fields.get(f))} for f in shared],
    }


def _text(value: Any) -> str:
    return "–" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
