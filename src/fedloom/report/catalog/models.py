"""Nets, by the kind of their inputs."""

from __future__ import annotations

from fedloom.nets import list_models
from fedloom.nets.registry import all_models
from fedloom.report.catalog.entry import Description, Entry, Section
from fedloom.report.catalog.find import chosen, docstring

INPUTS = {"image": "Images", "features": "Tables and signals", "tokens": "Texts"}


def entries() -> list[Entry]:
    rows = [
        Entry(
            str(row["name"]),
            f"{row['line']}; {row['parameters']:,} weights",
            INPUTS[str(row["inputs"]).split(", ")[0]],
            {key: row[key] for key in ("inputs", "options", "smallest", "parameters", "origin")},
        )
        for row in list_models()
    ]
    return sorted(rows, key=lambda row: (list(INPUTS.values()).index(row.group), row.name))


def describe(name: str) -> Description:
    row = chosen("model", name, list_models(), "models")
    entry = all_models()[name]
    facts = [("inputs", str(row["inputs"])), ("weights", f"{row['parameters']:,} (example input, 10 classes)")]
    facts += [("smallest image", f"{row['smallest']} x {row['smallest']}")] if "image" in str(row["inputs"]) else []
    facts.append(("as in", str(row["origin"])))
    sections = [Section("In short", [("", entry.line)]), Section("Architecture", docstring(entry.function))]
    if entry.parameters:
        sections.append(Section("Parameters", [("", str(value)) for value in entry.parameters.values()]))
    options = next(iter(entry.parameters.values()), None)
    example = f'"{name}({options})"' if options is not None and "=" in str(options) else name
    return Description(
        name, [*sections, Section("Facts", facts), Section("Example", [("", f"fedloom run --model {example}")])]
    )
