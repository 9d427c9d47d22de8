"""The protocols as rows of a table."""

from __future__ import annotations

from fedloom.papers.apply import apply
from fedloom.papers.load import papers, protocols
from fedloom.papers.schema import Paper, Protocol

ABOUT = ("data.name", "split", "method")  # what `about` says, and the method


def list_protocols() -> list[dict[str, str]]:
    """Name, paper, what it is, and every setting."""
    return [
        {
            "name": name,
            "paper": paper.name,
            "about": protocols()[name].about,
            "settings": settings_text(paper, protocols()[name]),
        }
        for paper in papers().values()
        for name in paper.protocols
    ]


def settings_text(paper: Paper, protocol: Protocol) -> str:
    """`clients 100; rounds x epochs 320; …; fn: lr 0.5; tested, …`"""
    fields = apply(protocol, "fedavg", {})
    if protocol.rounds_times_epochs is not None:
        fields["rounds x epochs"] = protocol.rounds_times_epochs
        fields.pop("rounds")
    words = [f"{name} {_value(value)}" for name, value in fields.items() if name != "method"]
    for part, settings in protocol.parts.items():
        own = [f"{name} {_value(value)}" for name, value in {**settings.hyper, **settings.set}.items()]
        words += [f"{part}: {', '.join(own)}"] if own else []
    words += [f"tested, {what}: {paper.measures[how].text}" for what, how in protocol.measured.items()]
    return "; ".join(words)


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
