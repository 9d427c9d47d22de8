"""Messages that nobody would send on purpose: random changes of good ones, the same for a seed."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

ODD: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**52,
        2**53,
        2**63,
        2**64,
        10**12,
        10**400,
        -(10**400),
        0.5,
        -0.5,
        1e308,
        5e-324,
    ),
    *(
        "",
        "x",
        "\x00",
        "\x1b[2J",
        "\n",
        "\ud800",
        "\udfff\ud800",
        "\u202eabc",
        "\u2028",
        "../../outside",
        "/etc/passwd",
    ),
    *("9" * 3000, "x" * 300, "{" * 50, "NaN", "0123456789abcdef", "\N{SNOWMAN}", "train", "client", "sites"),
    *([], [[]], {}, {"": 0}, {"a": {"b": {}}}, [0] * 100, ["x"] * 200, [1, 8, 8], [4096, 4096, 4096], [1, 1, 10**400]),
]
TEXTS = [
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "0" * 50, "1" * 5000, "-" + "9" * 4300, "1" * 400),
    *(
        "[" * 2000,
        "{" * 2000,
        '{"a":' * 50,
        "[[[[[[[[[]]]]]]]]]",
        '"',
        "\\",
        '"\\ud800"',
        '"\\u0000"',
        ",",
        ":",
        "]",
        "}",
        "",
    ),
    *("null", "true", "\ufeff", "\x00", "\ud800", "'", "/*", "0x10", "1_000", "+1", ".5", "5.", "1e5", "-0", "-0.0"),
]


def mutated(value: Any, random: Random) -> Any:
    """The same with one to three places changed: other values, other keys, more of them, fewer."""
    made = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 2, 3))):
        holder, key = random.choice(_places(made))
        choice = random.random()
        if choice < 0.6:
            holder[key] = copy.deepcopy(random.choice(ODD))
        elif choice < 0.7:
            del holder[key]
        elif choice < 0.8 and isinstance(holder, dict):
            name = random.choice(("", "extra", "refused", "report", "\ud800", "client", "steps" * 40))
            holder[name] = copy.deepcopy(random.choice(ODD))
        elif choice < 0.9 and isinstance(holder[key], int | float) and abs(holder[key]) < 1e100:
            holder[key] = holder[key] * random.choice((-1, 0, 2, 10**9, 0.5, 1e300))
        elif isinstance(holder[key], str):
            place = random.randrange(len(holder[key]) + 1)
            holder[key] = holder[key][:place] + chr(random.randrange(0x11000)) + holder[key][place:]
        if not isinstance(made, dict) or not made:
            return made
    return made


def mutated_text(value: Any, random: Random) -> str:
    """JSON that is changed as text: cut, doubled, with bits of JSON and of other things in it."""
    text = json.dumps(value)
    for _ in range(random.choice((1, 1, 2, 4))):
        begin = random.randrange(len(text) + 1)
        end = min(len(text), begin + random.choice((0, 0, 1, 2, 8, 1000)))
        choice = random.random()
        if choice < 0.6:
            text = text[:begin] + random.choice(TEXTS) + text[end:]
        elif choice < 0.8:
            text = text[:begin] + chr(random.randrange(1, 0x110000)) + text[end:]
        elif choice < 0.9:
            text = text[:begin] + text[begin:end] * 2 + text[end:]
        else:
            text = text[:begin] + text[end:]
    return text


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place where something could stand instead."""
    places: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        places.append((value, key))
        places += _places(inner)
    return places
