"""A protocol applied to a sum: the fields of a recipe.

    apply(protocol("fedbabu"), "fn", {"epochs": 4})     -> rounds 80, since rounds x epochs = 320

Explicit fields override the protocol. A part may bring a rate of its own, and hyper-parameters that the sum does not spell
out. Fields are flat: data.name, data.normalize.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from fedloom.errors import FedloomError
from fedloom.methods import Method, Part, method
from fedloom.methods.api.registry import ALIASES
from fedloom.papers.schema import PartSettings, Protocol


def apply(protocol: Protocol, text: str, given: Mapping[str, Any], counted_epochs: int | None = None) -> dict[str, Any]:
    """Flat fields of a recipe for this sum; `given` overrides.

    `counted_epochs`: what rounds_times_epochs counts, if not the recipe's epochs.
    """
    whole = with_hyperparameters(protocol, sum_of(_without_aliases(text)))
    explicit = flat(given)
    fields = dict(protocol.recipe)
    if explicit.get("data.name", fields.get("data.name")) != fields.get("data.name"):
        fields = {name: value for name, value in fields.items() if not name.startswith("data.")}
    for part in whole.parts:
        fields |= settings_of(protocol, part).set
    fields |= explicit
    if fields.get("steps") is not None and explicit.get("steps") is not None:  # local work is counted in one of them
        fields.pop("epochs", None)
    if protocol.rounds_times_epochs is not None and "rounds" not in explicit:
        epochs = counted_epochs or fields.get("epochs", 1)
        fields["rounds"] = _rounds(protocol.rounds_times_epochs, epochs)
    return {**fields, "method": str(whole)}


def as_typed(text: str, applied: str) -> str:
    """The method as it was typed, unless the protocol gave it other hyper-parameters, which `applied` has."""
    return text.strip() if sum_of(text.strip()).spelled() == sum_of(applied).spelled() else applied


@cache
def sum_of(text: str) -> Method:
    """A sum, parsed once: a table names the same few hundreds of times."""
    return method(text)


def with_hyperparameters(protocol: Protocol, whole: Method) -> Method:
    """The sum with the protocol's hyper-parameters where it has none of its own."""
    parts = []
    for part in whole.parts:
        ours = {
            name: value
            for name, value in settings_of(protocol, part).hyper.items()
            if name not in part.model_fields_set
        }
        weighed = "beta" in part.model_fields_set  # a convex share replaces weights and constants
        parts.append(type(part)(**{**part.values(), **ours}) if ours and not weighed else part)
    return Method(tuple(parts))


def released(protocol: Protocol, text: str) -> str | None:
    """The sum with the hyper-parameters of the released code; None if they are the protocol's."""
    written = sum_of(text)
    ours = with_hyperparameters(protocol, written)
    parts = []
    for given, part in zip(written.parts, ours.parts, strict=True):
        theirs = {} if "beta" in given.model_fields_set else settings_of(protocol, part).released
        parts.append(type(part)(**{**part.values(), **theirs}))
    theirs_spelled = Method(tuple(parts)).spelled()
    return theirs_spelled if theirs_spelled != ours.spelled() else None


def notes_of(protocol: Protocol, text: str) -> list[str]:
    """What the protocol says of the parts of a sum."""
    return [note for part in sum_of(text).parts if (note := settings_of(protocol, part).note)]


def _without_aliases(text: str) -> str:
    """`fedprox + fn` as `prox + fn`: an alias spells out all hyper-parameters of its parts, the user none."""

    def expanded(term: re.Match[str]) -> str:
        name = term.group(2).lower()
        return term.group(1) + (ALIASES[name].sum or name if name in ALIASES else term.group(2))

    return re.sub(r"((?:^|\+)\s*)([\w-]+)(?=\s*(?:\+|$))", expanded, text)


def is_place(data: str) -> bool:
    """Whether `data.name` says where a data set is (folder:PATH, hf:owner/name, PATH.npz), not which one it is."""
    return ":" in data or "/" in data or data.endswith(".npz")


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Flat fields as a recipe has them: data.name becomes data: {name: …}."""
    whole: dict[str, Any] = {}
    for name, value in fields.items():
        group, dot, inner = name.partition(".")
        if dot:
            place = whole.setdefault(group, {})
            if not isinstance(place, dict):
                place = whole[group] = {"name": place}
            place[inner] = value
        else:
            whole[name] = value
    return whole


def flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of `nested`; a plain text for `data` is its name."""
    whole: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            whole |= {f"{name}.{inner}": item for inner, item in value.items()}
        else:
            whole["data.name" if name == "data" else name] = value
    return whole


def variant(part: Part) -> str:
    """A part by its name, with only the hyper-parameters that make it another method."""
    return str(type(part)(**{name: part.values()[name] for name in part.variants})) if part.variants else part.name


def settings_of(protocol: Protocol, part: Part) -> PartSettings:
    return protocol.parts.get(variant(part)) or protocol.parts.get(part.name) or PartSettings()


def _rounds(product: int, epochs: Any) -> int:
    try:
        rounds = product / int(str(epochs))
    except (ValueError, ZeroDivisionError):
        raise FedloomError(
            f"rounds: this protocol fixes rounds x epochs = {product}; epochs {epochs} is no number, so give rounds too"
        ) from None
    return max(round(rounds), 1)
