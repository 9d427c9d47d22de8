"""What papers printed for the same setting: same data set, net, split and parts of the method.

published.json holds numbers of the papers' tables, nothing else of them. Rates, epochs, rounds and hyper-parameters need not
agree, so each number carries its setting as printed, and the page shows it beside ours, marked as published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

SETS = {"pacs64": "pacs"}  # our files' names -> the papers' sets


@cache
def rows() -> list[dict[str, Any]]:
    kept = json.loads((files("fedloom.report") / "published.json").read_text(encoding="utf-8"))
    words, numbers = kept["strings"], ("value", "deviation")
    return [
        {
            name: item if name in numbers or item is None else words[item]
            for name, item in zip(kept["columns"], row, strict=True)
        }
        for row in kept["rows"]
    ]


def matching(fields: Mapping[str, Any], method: str) -> list[dict[str, Any]]:
    """Published rows for this recipe. Of a table that sweeps rate and epochs: the same ones, else its best."""
    name = re.sub(r"\.npz$", "", str(fields.get("data.name", ""))).rsplit("/", 1)[-1].lower()
    key = (SETS.get(name, name), fields.get("model"), _split(str(fields.get("split", ""))), parts(method))
    alike = [row for row in rows() if (row["data"], row["model"], row["split"], row["parts"]) == key]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in alike:
        kind = re.sub(r"\b(lr|epochs|f|tau|r)=[\d.]+|\d+ clients.*", "", row["setting"])
        groups.setdefault((row["paper"], row["table"], row["metric"], row["method"], kind), []).append(row)
    chosen = []
    for found in groups.values():
        same = [row for row in found if _agrees(row["setting"], fields)]
        if same:
            chosen += [{**row, "best_of": 1} for row in same]
        else:
            chosen.append({**max(found, key=lambda row: row["value"]), "best_of": len(found)})
    return chosen


def parts(method: str) -> str:
    """The names of a sum's parts, sorted: "prox(mu=0.1) + fn" is fn+prox."""
    plain = re.sub(r"\([^()]*\)", "", method)
    return "+".join(sorted(filter(None, (word.strip() for word in plain.split("+"))))) or "fedavg"


def _split(text: str) -> str:
    kind, _, number = text.partition(":")
    try:
        return f"{kind}:{float(number):g}"
    except ValueError:
        return text


def _agrees(setting: str, fields: Mapping[str, Any]) -> bool:
    """Whether rate, epochs, clients and share of clients are ours wherever the setting tells them."""
    told = {
        "lr": re.search(r"\blr=([\d.]+)", setting),
        "epochs": re.search(r"(?<!FT )\b(?:epochs|tau)=([\d.]+)", setting),
        "fraction": re.search(r"\b[fr]=([\d.]+)", setting),
        "clients": re.search(r"\b(?:N=)?(\d+)(?: clients|,r=)", setting),
    }
    return all(found is None or float(found[1]) == float(fields[field]) for field, found in told.items())
