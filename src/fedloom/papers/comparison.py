"""A protocol in a comparison: every method with the rate and hyper-parameters that the protocol gives it.

rows(protocol("feddrplus"), ["fedavg", "dr + fd"], {})     -> ["fedavg", "dr + fd @ lr=5.0"]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedloom.papers.apply import apply, flat
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
