"""The kinds of names that recipes use: how each is listed, and how one of them is described."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from fedloom.data import list_sets, list_splits
from fedloom.data.scheme import SCHEMES
from fedloom.errors import FedloomError
from fedloom.evaluation.metrics import METRICS, list_metrics
from fedloom.nearest import nearest
from fedloom.nets import list_models
from fedloom.nets.registry import all_models
from fedloom.papers import paper, papers
from fedloom.papers.listing import list_protocols
from fedloom.report.catalog import methods
from fedloom.report.catalog.entry import Description, Entry, Section

INPUTS = {"image": "Images", "features": "Tables and signals", "tokens": "Texts"}
HELD, SEEN = "Who holds what", "What each client sees"


@dataclass(frozen=True)
class Kind:
    entries: Callable[[], list[Entry]]
    describe: Callable[[str], Description]


def _models() -> list[Entry]:
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


def _model(name: str) -> Description:
    row = _chosen("model", name, list_models(), "models")
    entry = all_models()[name]
    facts = [("inputs", str(row["inputs"])), ("weights", f"{row['parameters']:,} (example input, 10 classes)")]
    facts += [("smallest image", f"{row['smallest']} x {row['smallest']}")] if "image" in str(row["inputs"]) else []
    facts.append(("as in", str(row["origin"])))
    sections = [Section("In short", [("", entry.line)]), Section("Architecture", _docstring(entry.function))]
    if entry.parameters:
        sections.append(Section("Parameters", [("", str(value)) for value in entry.parameters.values()]))
    options = next(iter(entry.parameters.values()), None)
    example = f'"{name}({options})"' if options is not None and "=" in str(options) else name
    return Description(
        name, [*sections, Section("Facts", facts), Section("Example", [("", f"fedloom run --model {example}")])]
    )


def _splits() -> list[Entry]:
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


def _split(name: str) -> Description:
    row = _chosen("split", name, list_splits(), "splits")
    scheme = SCHEMES[name]
    values = [
        (item.name, "no default" if item.default is MISSING else f"default {item.default}") for item in fields(scheme)
    ]
    sections = [Section("In short", [("", row["summary"])]), Section("Definition", _docstring(scheme))]
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


def _metrics() -> list[Entry]:
    return [
        Entry(row["name"], f"{row['summary']} ({row['better']} is better)", "", {**row, "summary": row["summary"]})
        for row in list_metrics()
    ]


def _metric(name: str) -> Description:
    row = _chosen("metric", name, list_metrics(), "metrics")
    metric = METRICS[name]
    low, high = metric.bounds
    facts = [("better", row["better"]), ("format", row["format"]), ("values", f"{low:g} to {high:g}")]
    facts.append(("columns", f"test_{name}, client_{name}, personal_{name}"))
    facts.append(
        ("sites", "mean over samples, so sites' values average exactly" if metric.sample_mean else "a mean over sites")
    )
    return Description(
        name,
        [
            Section("In short", [("", row["summary"])]),
            Section("Definition", inspect.getdoc(type(metric)) or ""),
            Section("Facts", facts),
            Section(
                "Example", [("", f"fedloom run --metrics accuracy,{name}" if name != "accuracy" else "fedloom run")]
            ),
        ],
    )


def _data() -> list[Entry]:
    def group(row: Mapping[str, str]) -> str:
        if ":" in row["name"] or "." in row["name"]:
            return "Forms of --data"
        return "Downloaded when first used" if row["file"].startswith("hf:") else "Here"

    order = ("Here", "Downloaded when first used", "Forms of --data")

    def summary(row: Mapping[str, str]) -> str:
        return f"{row['summary']} ({row['file']})" if row["file"].startswith("hf:") else row["summary"]

    rows = [Entry(row["name"], summary(row), group(row), {"from": row["file"]}) for row in list_sets()]
    return sorted(rows, key=lambda row: order.index(row.group))


def _set(name: str) -> Description:
    row = _chosen("data set", name, list_sets(), "data")
    facts = [("", row["summary"]), *([("from", row["file"])] if row["file"] else [])]
    return Description(name, [Section("In short", facts), Section("Example", [("", f"fedloom run --data {name}")])])


def _protocols() -> list[Entry]:
    return [Entry(row["name"], row["about"], row["paper"]) for row in list_protocols()]


def _protocol(name: str) -> Description:
    row = _chosen("protocol", name, list_protocols(), "")
    sections = [Section("In short", [("", row["about"]), ("", f"of {row['paper']}")])]
    for key, heading in {"settings": "Settings", "methods": "By method", "tested": "Tested"}.items():
        if row[key]:
            sections.append(Section(heading, [(str(name), str(value)) for name, value in row[key].items()]))
    if row["notes"]:
        sections.append(Section("Notes", [("", note) for note in row["notes"]]))
    example = [("", f"fedloom run --protocol {name} --method fn")]
    return Description(name, [*sections, Section("Example", example)])


def _papers() -> list[Entry]:
    return [
        Entry(key, f"{whole.title} ({whole.cite}); {len(whole.tables)} tables", "", {"tables": list(whole.tables)})
        for key, whole in papers().items()
    ]


def _paper(name: str) -> Description:
    whole, key = paper(name), next(key for key, known in papers().items() if known is paper(name))
    tables = [(f"{key}/{table}", content.title) for table, content in whole.tables.items()]
    sections = [Section("In short", [("", whole.title), ("", whole.cite), ("", whole.about)])]
    sections.append(Section("Protocols", [(name, protocol.about) for name, protocol in whole.protocols.items()]))
    sections.append(Section("Tables", tables))
    return Description(key, [*sections, Section("Example", [("", f"fedloom reproduce {tables[0][0]} --plan")])])


KINDS: dict[str, Kind] = {
    "methods": Kind(methods.entries, methods.describe),
    "models": Kind(_models, _model),
    "splits": Kind(_splits, _split),
    "data": Kind(_data, _set),
    "metrics": Kind(_metrics, _metric),
    "protocols": Kind(_protocols, _protocol),
    "papers": Kind(_papers, _paper),
}


def _chosen(what: str, name: str, rows: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    by_name = {str(row["name"]): row for row in rows}
    if name not in by_name:
        raise FedloomError(f"list: {nearest(what, name, by_name, kind)}")
    return by_name[name]


def _docstring(item: Any) -> str:
    """Of the file that has it."""
    return inspect.cleandoc(sys.modules[item.__module__].__doc__ or item.__doc__ or "")
