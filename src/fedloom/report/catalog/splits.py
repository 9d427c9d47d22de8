"""Terms of a split: who holds what, and what each client sees."""

from __future__ import annotations

from dataclasses import MISSING, fields

from fedloom.data import list_splits
from fedloom.data.scheme import SCHEMES
from fedloom.report.catalog.entry import Description, Entry, Section
from fedloom.report.catalog.find import chosen, docstring

HELD, SEEN = "Who holds what", "What each client sees"


def entries() -> list[Entry]:
    groups = {"who holds what": HELD, "what is seen": SEEN}
    return [
        Entry(
            row["name"],
            f"{row['summary']} ({row['example']})",
            groups.get(row["kind"], row["kind"]),
            {key: row[key] for key in ("example", "parameters", "paper")},
        )
        for row in list_splits()
    ]


def describe(name: str) -> Description:
    row = chosen("split", name, list_splits(), "splits")
    scheme = SCHEMES[name]
    values = [
        (item.name, "no default" if item.default is MISSING else f"default {item.default}") for item in fields(scheme)
    ]
    sections = [Section("In short", [("", row["summary"])]), Section("Definition", docstring(scheme))]
    sections += [Section("Numbers, separated by colons", values)] if values else []
    sections += [Section("Paper", [("", row["paper"])])] if row["paper"] else []
    example = scheme.example.partition(",")[0]
    other = (
        f"fedloom run --split dirichlet:0.5+{example}"
        if row["kind"] == "what is seen"
        else f"fedloom run --split {example}"
    )
    lines = [("", other), ("", f"fedloom split --split {example}")]
    return Description(name, [*sections, Section("Example", lines)])
