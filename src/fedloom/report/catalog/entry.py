"""An entry of a list, and the description of one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    name: str
    summary: str
    group: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # further keys of --json

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "summary": self.summary,
            **({"group": self.group} if self.group else {}),
            **self.facts,
        }


@dataclass(frozen=True)
class Section:
    """A heading and what is below it: a text whose indented lines are kept as they are, or pairs of a name and a text."""

    heading: str
    content: str | list[tuple[str, str]]


@dataclass(frozen=True)
class Description:
    title: str
    sections: list[Section]

    def to_json(self) -> dict[str, Any]:
        content = {
            section.heading: section.content if isinstance(section.content, str) else _merged(section.content)
            for section in self.sections
        }
        return {"name": self.title, **content}


def _merged(pairs: list[tuple[str, str]]) -> dict[str, str] | list[str]:
    """Pairs as a mapping; texts without names as a list."""
    return dict(pairs) if any(name for name, _ in pairs) else [text for _, text in pairs]
