"""Series: runs that differ only in their seed. A series is a row of the table and a line of each figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.recipe import NO_EFFECT_FIELDS
from fedloom.report.page.gather import RunFiles


@dataclass(frozen=True)
class Series:
    label: str
    runs: list[RunFiles]


def group(runs: Sequence[RunFiles], names: Mapping[str, str]) -> list[Series]:
    """Series in order of appearance, each with a unique label. `names`: display names by method."""
    groups: dict[str, list[RunFiles]] = {}
    for run in runs:
        groups.setdefault(run.identity, []).append(run)
    members = list(groups.values())
    texts = _labels(members, names)
    counts = Counter(texts)
    named = [
        label if counts[label] == 1 else f"{label} ({group_runs[0].path.name})"
        for label, group_runs in zip(texts, members, strict=True)
    ]
    return [Series(label, group_runs) for label, group_runs in zip(named, members, strict=True)]


def _labels(members: Sequence[Sequence[RunFiles]], names: Mapping[str, str]) -> list[str]:
    """The method or its display name, and as few other fields as make all labels different."""
    left = [field for field in differences(members) if field != "method"]
    words: list[list[str]] = [[names.get(runs[0].row, runs[0].name)] for runs in members]
    if len({parts[0] for parts in words}) == 1 and left and not names:
        words = [[] for _ in members]
    while left and len({tuple(parts) for parts in words}) < len(members):
        added = {f: [*zip(map(tuple, words), (_text(m[0].fields.get(f)) for m in members), strict=True)] for f in left}
        field = max(left, key=lambda f: len(set(added[f])))
        left.remove(field)
        for parts, group_runs in zip(words, members, strict=True):
            parts.append(f"{field.removeprefix('data.')}={_text(group_runs[0].fields.get(field))}")
    return [", ".join(parts) for parts in words]


def differences(groups: Sequence[Sequence[RunFiles]]) -> list[str]:
    """Fields of the recipe that differ between series."""
    fields = dict.fromkeys(field for runs in groups for field in runs[0].fields)
    deciding = [field for field in fields if field not in NO_EFFECT_FIELDS and field != "seed"]
    return [field for field in deciding if len({_text(runs[0].fields.get(field)) for runs in groups}) > 1]


def recipe_table(series: Sequence[Series]) -> dict[str, Any]:
    """The recipes: fields that differ between series, and fields that all share."""
    groups = [item.runs for item in series]
    apart = differences(groups)
    if not groups:
        return {"apart": [], "shared": []}
    fields = dict.fromkeys(field for runs in groups for field in runs[0].fields)
    shared = [field for field in fields if field not in apart and field not in (*NO_EFFECT_FIELDS, "seed")]
    return {
        "apart": [{"field": f, "values": [_text(runs[0].fields.get(f)) for runs in groups]} for f in apart],
        "shared": [{"field": f, "value": _text(groups[0][0].fields.get(f))} for f in shared],
    }


def _text(value: Any) -> str:
    return "–" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
