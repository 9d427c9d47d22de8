"""A protocol in a comparison: every method with the rate and hyper-parameters that the protocol gives it.

rows(protocol("feddrplus"), ["fedavg", "feddrplus"], {})             -> ["fedavg", "dr + fd @ lr=5.0"]
names(["fedavg", "feddrplus"], ["fedavg", "dr + fd @ lr=5.0"])       -> {"dr + fd @ lr=5.0": "feddrplus @ lr=5.0"}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedloom.papers.apply import apply, as_typed, flat
from fedloom.papers.schema import Protocol


def rows(
    protocol: Protocol, methods: Sequence[str], given: Mapping[str, Any], swept: Collection[str] = ()
) -> list[str]:
    """`methods`: texts such as "fn @ lr=0.3"; what they or `given` set, or what is swept, stays."""
    explicit = flat(given)
    base = apply(protocol, "fedavg", explicit)
    made = []
    for row in methods:
        text, _, settings = row.partition("@")
        own = dict(setting.split("=", 1) for setting in settings.replace(",", " ").split() if "=" in setting)
        fields = apply(protocol, text.strip(), {**explicit, **own})
        brought = {
            name: value
            for name, value in fields.items()
            if name not in (*explicit, *own, *swept, "method") and base.get(name) != value
        }
        words = [settings.strip(), *(f"{name}={value}" for name, value in brought.items())]
        behind = " ".join(word for word in words if word)
        made.append(f"{fields['method']} @ {behind}" if behind else str(fields["method"]))
    return made


def names(methods: Sequence[str], rows: Sequence[str]) -> dict[str, str]:
    """What tables call the rows of these methods: the method as it was typed, where that is the same sum."""
    called = {}
    for typed, row in zip(methods, rows, strict=True):
        applied, at, settings = row.partition(" @ ")
        name = f"{as_typed(typed.partition('@')[0], applied)}{at}{settings}"
        if name != row:
            called[row] = name
    return called
