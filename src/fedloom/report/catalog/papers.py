"""Papers whose tables can be reproduced."""

from __future__ import annotations

from fedloom.papers import paper, papers
from fedloom.report.catalog.entry import Description, Entry, Section


def entries() -> list[Entry]:
    return [
        Entry(key, f"{whole.title} ({whole.cite}); {len(whole.tables)} tables", "", {"tables": list(whole.tables)})
        for key, whole in papers().items()
    ]


def describe(name: str) -> Description:
    whole, key = paper(name), next(key for key, known in papers().items() if known is paper(name))
    tables = [(f"{key}/{table}", content.title) for table, content in whole.tables.items()]
    sections = [Section("In short", [("", whole.title), ("", whole.cite), ("", whole.about)])]
    sections.append(Section("Protocols", [(name, protocol.about) for name, protocol in whole.protocols.items()]))
    sections.append(Section("Tables", tables))
    return Description(key, [*sections, Section("Example", [("", f"fedloom reproduce {tables[0][0]} --plan")])])
