"""Sums of parts: how they are written, what may be added to what, and where their names come from."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedloom.errors import LINE, FedloomError, brief, shown
from fedloom.methods.part import DOES, EXCLUSIVE, ON_EXCHANGED, Part
from fedloom.values import Unreadable, parse

_PARTS: dict[str, type[Part]] = {}
_ALIASES: dict[str, Alias] = {}


@dataclass(frozen=True)
class Alias:
    """Another name for a sum, as a paper calls it."""

    name: str
    sum: str
    summary: str
    paper: str


def register(part: type[Part]) -> None:
    """Make a part known by its name; a second class of that name replaces the first only from the same place."""
    if not re.fullmatch(r"[a-z_][a-z0-9_-]*", part.name):
        raise FedloomError(
            f"a part is called {part.name!r}; its name must be one that recipes can write: a lower-case letter, "
            f"then lower-case letters, digits, _ and -"
        )
    if part.name in _ALIASES:
        raise FedloomError(f"{part.name!r} is known already, as {_ALIASES[part.name].summary}; choose another name")
    known = _PARTS.get(part.name)
    if known and (known.__module__, known.__qualname__) != (part.__module__, part.__qualname__):
        raise FedloomError(
            f"two parts are called {part.name!r}: {known.__module__} has it already; choose another name"
        )
    _PARTS[part.name] = part


def alias(name: str, sum: str, summary: str, paper: str = "") -> None:
    _ALIASES[name] = Alias(name, sum, summary, paper)


alias("fedavg", "", "the empty sum: local training, then the average", "McMahan et al. 2017")


@dataclass(frozen=True)
class Method:
    """A sum of parts, checked when it is made: two parts never claim the same decision."""

    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        for name in names:
            if names.count(name) > 1:
                raise FedloomError(f"method: {name} stands twice in the sum; keep one")
        for hook, decision in EXCLUSIVE.items():
            claims = [part.name for part in self.parts if part.hooks(hook)]
            if len(claims) > 1:
                raise FedloomError(f"method: {claims[0]} and {claims[1]} both decide {decision}; keep one")
        for piece in ("head", "norm"):
            claims = [part.name for part in self.parts if piece in part.replaces]
            if len(claims) > 1:
                raise FedloomError(f"method: {claims[0]} and {claims[1]} both replace the {piece}; keep one")
        alone = [part.name for part in self.parts if not part.exchanges]
        idle = [part.name for part in self.parts if any(part.hooks(hook) for hook in ON_EXCHANGED)]
        if alone and idle:
            raise FedloomError(
                f"method: {idle[0]} acts on what clients exchange, and with {alone[0]} they exchange nothing; keep one"
            )
        for strict in self.parts:
            for part in self.parts:
                if part is not strict and (beyond := _beyond(strict, part)):
                    does = DOES.get(beyond, f"uses {beyond}")
                    raise FedloomError(f"method: {part.name} {does}, {strict.because}; keep one")

    def hooked(self, name: str) -> list[Part]:
        """The parts that override a hook, in the order of the sum."""
        return [part for part in self.parts if part.hooks(name)]

    def the(self, name: str) -> Part | None:
        """The one part that decides an exclusive hook."""
        return next(iter(self.hooked(name)), None)

    def __add__(self, other: Part | Method) -> Method:
        return Method((*self.parts, *(other.parts if isinstance(other, Method) else (other,))))

    def __str__(self) -> str:
        return " + ".join(str(part) for part in self.parts) or "fedavg"

    __repr__ = __str__

    def spelled(self) -> str:
        return " + ".join(part.spelled() for part in self.parts) or "fedavg"


def _beyond(strict: Part, part: Part) -> str | None:
    """The first hook of a part that another one does not allow beside it; hooks that came later are not allowed either."""
    if strict.beside is None:
        return None
    hooks = [name for name in vars(Part) if not name.startswith("_") and name not in ("hooks", "spelled")]
    ours = (name for name in hooks if callable(value := getattr(Part, name)) or isinstance(value, property))
    return next((name for name in ours if part.hooks(name) and name not in strict.beside), None)


_TERM = re.compile(r"^\s*([A-Za-z_][\w-]*)\s*(?:\((.*)\))?\s*$", re.DOTALL)


def method(text: str | Part | Method) -> Method:
    """`method("scaffold + prox(mu=0.01)")`: names, or name(key=value, ...), joined by +."""
    if isinstance(text, Method):
        return text
    if isinstance(text, Part):
        return Method((text,))
    if not text.strip():
        raise FedloomError("method: an empty text; write fedavg for the empty sum")
    parts: list[Part] = []
    for term in _split(text, "+"):
        matched = _TERM.match(term)
        if not matched:
            raise FedloomError(
                f"method: cannot read {shown(term.strip())}; write name or name(key=value, ...), joined by +"
            )
        name, arguments = matched.group(1).lower(), _arguments(matched.group(2) or "", term)
        parts.extend(_expand(name, arguments))
    return Method(tuple(parts))


def _expand(name: str, arguments: dict[str, Any]) -> Iterable[Part]:
    if name in _PARTS:
        return [_PARTS[name](**arguments)]
    if name not in _ALIASES:
        known = sorted({*_PARTS, *_ALIASES})
        near = difflib.get_close_matches(name[:LINE], known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        raise FedloomError(f"method: unknown part {shown(name)}; {hint}")
    text = _ALIASES[name].sum
    parts = list(method(text).parts) if text else []
    for key in arguments:
        if not any(key in type(part).model_fields for part in parts):
            allowed = ", ".join(k for part in parts for k in type(part).model_fields) or "none"
            raise FedloomError(f"method: {name} has no {shown(key)}; its hyper-parameters are: {allowed}")
    return [
        type(part)(**{**part.model_dump(), **{k: v for k, v in arguments.items() if k in type(part).model_fields}})
        for part in parts
    ]


def _arguments(text: str, term: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in _split(text, ",") if text.strip() else []:
        key, equals, value = item.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise FedloomError(f"method: cannot read {shown(item.strip())} in {shown(term.strip())}; write key=value")
        if key.strip() in found:
            raise FedloomError(f"method: {brief(key.strip())} stands twice in {shown(term.strip())}; keep one")
        try:
            found[key.strip()] = parse(value)
        except Unreadable:
            raise FedloomError(
                f"method: cannot read the value {shown(value.strip())} in {shown(term.strip())}"
            ) from None
    return found


def _split(text: str, at: str) -> list[str]:
    """Split at a sign, but not inside brackets (so not at the + of an exponent, 1e+3) nor inside double quotes."""
    pieces, depth, begin = [], 0, 0
    plain = re.sub(r'"(?:[^"\\]|\\.)*"', lambda found: "_" * len(found[0]), text)
    for i, sign in enumerate(plain):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == at and depth == 0:
            pieces.append(text[begin:i])
            begin = i + 1
    return [*pieces, text[begin:]]


def list_methods() -> list[dict[str, Any]]:
    """Name, kind, one line, paper and hyper-parameters with defaults of all parts and aliases."""
    rows: list[dict[str, Any]] = []
    for name, part in _PARTS.items():
        fields = {key: field.default for key, field in part.model_fields.items()}
        row = {"name": name, "title": name, "sum": name, "summary": _line(part), "paper": part.paper}
        rows.append({**row, "parameters": fields})
    for item in _ALIASES.values():
        parameters = {
            k: v for part in (method(item.sum).parts if item.sum else ()) for k, v in part.model_dump().items()
        }
        title = f"{item.name} = {item.sum}" if item.sum else item.name
        row = {"name": item.name, "title": title, "sum": item.sum, "summary": item.summary, "paper": item.paper}
        rows.append({**row, "parameters": parameters})
    return sorted(rows, key=lambda row: str(row["name"]))


def _line(part: type[Part]) -> str:
    return (part.__doc__ or "").strip().split("\n")[0]
