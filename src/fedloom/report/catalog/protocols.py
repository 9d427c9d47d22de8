"""The papers' protocols."""

from __future__ import annotations

from fedloom.papers.listing import list_protocols
from fedloom.report.catalog.entry import Description, Entry, Section
from fedloom.report.catalog.find import chosen


def entries() -> list[Entry]:
    return [Entry(row["name"], row["about"], row["paper"]) for row in list_protocols()]


def describe(name: str) -> Description:
    row = chosen("protocol", name, list_protocols(), "")
    sections = [Section("In short", [("", row["about"]), ("", f"of {row['paper']}")])]
    for key, heading in {"settings": "Settings", "methods": "By method", "tested": "Tested"}.items():
        if row[key]:
            sections.append(Section(heading, [(str(name), str(value)) for name, value in row[key].items()]))
    if row["notes"]:
        sections.append(Section("Notes", [("", note) for note in row["notes"]]))
    example = [("", f"fedloom run --protocol {name} --method fn")]
    return Description(name, [*sections, Section("Example", example)])
