"""Data sets, by where they come from."""

from __future__ import annotations

from collections.abc import Mapping

from fedloom.data import list_sets
from fedloom.report.catalog.entry import Description, Entry, Section
from fedloom.report.catalog.find import chosen


def entries() -> list[Entry]:
    def group(row: Mapping[str, str]) -> str:
        if ":" in row["name"] or "." in row["name"]:
            return "Forms of --data"
        return "Downloaded when first used" if row["file"].startswith("hf:") else "Here"

    order = ("Here", "Downloaded when first used", "Forms of --data")

    def summary(row: Mapping[str, str]) -> str:
        return f"{row['summary']} ({row['file']})" if row["file"].startswith("hf:") else row["summary"]

    rows = [Entry(row["name"], summary(row), group(row), {"from": row["file"]}) for row in list_sets()]
    return sorted(rows, key=lambda row: order.index(row.group))


def describe(name: str) -> Description:
    row = chosen("data set", name, list_sets(), "data")
    facts = [("", row["summary"]), *([("from", row["file"])] if row["file"] else [])]
    return Description(name, [Section("In short", facts), Section("Example", [("", f"fedloom run --data {name}")])])
