"""The protocols as rows of a table."""

from __future__ import annotations

from typing import Any

from fedloom.papers.apply import apply
from fedloom.papers.load import papers, protocols
from fedloom.papers.schema import Protocol


def list_protocols() -> list[dict[str, Any]]:
    """Name, paper, what it is, every setting, what methods change in it, what is tested, and notes."""
    return [
        {
            "name": name,
            "paper": paper.name,
            "about": protocols()[name].about,
            "settings": _settings(protocols()[name]),
            "methods": _by_method(protocols()[name]),
            "tested": {what: paper.measures[how].text for what, how in protocols()[name].measured.items()},
            "notes": [*_notes(protocols()[name]), *paper.notes],
        }
        for paper in papers().values()
        for name in paper.protocols
    ]


def _settings(protocol: Protocol) -> dict[str, str]:
    fields = apply(protocol, "fedavg", {})
    if protocol.rounds_times_epochs is not None:
        fields["rounds x epochs"] = protocol.rounds_times_epochs
        fields.pop("rounds")
    return {name: _value(value) for name, value in fields.items() if name != "method"}


def _by_method(protocol: Protocol) -> dict[str, str]:
    """The rates and hyper-parameters that a sum with this part has."""
    return {
        part: ", ".join(f"{name} {_value(value)}" for name, value in {**settings.hyper, **settings.set}.items())
        for part, settings in protocol.parts.items()
        if settings.hyper or settings.set
    }


def _notes(protocol: Protocol) -> list[str]:
    return [*protocol.notes, *(f"{part}: {known.note}" for part, known in protocol.parts.items() if known.note)]


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
