"""Sums of parts as text, such as `scaffold + prox(mu=0.01)`, and the list of all names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedloom.errors import FedloomError, brief, shown
from fedloom.methods.api.groups import group_of
from fedloom.methods.api.part import Method, Part
from fedloom.methods.api.registry import ALIASES, PARTS
from fedloom.nearest import unknown_part
from fedloom.values import Unreadable, parse

_TERM = re.compile(r"^\s*([A-Za-z_][\w-]*)\s*(?:\((.*)\))?\s*$", re.DOTALL)


def method(text: str | Part | Method) -> Method:
    """A sum of parts from its text: names, or name(key=value, ...), joined by +.

    >>> fl.method("scaffold + prox(mu=0.1)")
    scaffold + prox(mu=0.1)
    """
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
    if name in PARTS:
        return [PARTS[name](**arguments)]
    if name not in ALIASES:
        raise FedloomError(unknown_part(name, sorted({*PARTS, *ALIASES})))
    text = ALIASES[name].sum
    parts = list(method(text).parts) if text else []
    for key in arguments:
        if not any(key in part.hyperparameters() for part in parts):
            allowed = ", ".join(k for part in parts for k in part.hyperparameters()) or "none"
            raise FedloomError(f"method: {name} has no {shown(key)}; its hyper-parameters are: {allowed}")
    return [
        type(part)(**{**part.values(), **{k: v for k, v in arguments.items() if k in part.hyperparameters()}})
        for part in parts
    ]


def _arguments(text: str, term: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for item in _split(text, ",") if text.strip() else []:
        key, equals, value = item.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise FedloomError(f"method: cannot read {shown(item.strip())} in {shown(term.strip())}; write key=value")
        if key.strip() in arguments:
            raise FedloomError(f"method: {brief(key.strip())} stands twice in {shown(term.strip())}; keep one")
        try:
            arguments[key.strip()] = parse(value)
        except Unreadable:
            raise FedloomError(
                f"method: cannot read the value {shown(value.strip())} in {shown(term.strip())}"
            ) from None
    return arguments


def _split(text: str, at: str) -> list[str]:
    """Split at a sign, except inside brackets (where the + of an exponent, 1e+3, may be) and double quotes."""
    pieces, depth, begin = [], 0, 0
    plain = re.sub(r'"(?:[^"\\]|\\.)*"', lambda quoted: "_" * len(quoted[0]), text)
    for i, sign in enumerate(plain):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == at and depth == 0:
            pieces.append(text[begin:i])
            begin = i + 1
    return [*pieces, text[begin:]]


def list_methods() -> list[dict[str, Any]]:
    """Every part and alias by name: its group, the sum it stands for, summary, paper, hyper-parameters with defaults."""
    rows: list[dict[str, Any]] = []
    for name, part in PARTS.items():
        defaults = {key: field.default for key, field in part.hyperparameters().items()}
        row = {"name": name, "title": name, "group": group_of(part), "sum": name, "summary": summary_of(part)}
        rows.append({**row, "paper": part.paper, "parameters": defaults})
    for item in ALIASES.values():
        parts = method(item.sum).parts if item.sum else ()
        title = f"{item.name} = {item.sum}" if item.sum else item.name
        summary = item.summary or summary_of(type(parts[0]))
        groups = list(dict.fromkeys(group_of(type(part)) for part in parts))
        row = {"name": item.name, "title": title, "group": ", ".join(groups), "sum": item.sum, "summary": summary}
        row["paper"] = item.paper or (parts[0].paper if parts else "")
        rows.append({**row, "parameters": {key: value for part in parts for key, value in part.values().items()}})
    return sorted(rows, key=lambda row: str(row["name"]))


def summary_of(part: type[Part]) -> str:
    """The first line of the class's docstring."""
    return (part.__doc__ or "").strip().split("\n")[0]


@dataclass(frozen=True)
class OpenMethod:
    """A sum in which some hyper-parameters are left open: `dr + fd(beta=?)`. Names are pairs of part and hyper-parameter."""

    method: Method  # open values have their defaults
    open: tuple[tuple[str, str], ...]
    given: tuple[tuple[str, str], ...]  # those that the text sets


def open_method(text: str) -> OpenMethod:
    """Read a sum whose values may be `?`."""
    pieces = [_open_term(term) for term in _split(text, "+")]
    closed = method(" + ".join(term for term, _, _ in pieces))
    return OpenMethod(closed, tuple(p for _, o, _ in pieces for p in o), tuple(p for _, _, g in pieces for p in g))


Names = list[tuple[str, str]]


def _open_term(term: str) -> tuple[str, Names, Names]:
    """A term without its open values; those; and the values that it sets."""
    matched = _TERM.match(term)
    if not matched or not (matched.group(2) or "").strip():
        return term, [], []
    items = [item.partition("=") for item in _split(matched.group(2), ",")]
    asked = [key.strip() for key, _, value in items if value.strip() == "?"]
    rest = [f"{key}={value}" for key, equals, value in items if value.strip() != "?" and equals]
    rest += [key for key, equals, _ in items if not equals]
    name = matched.group(1).lower()
    closed = f"{name}({','.join(rest)})" if rest else name
    parts = method(closed).parts
    for key in asked:
        if not any(key in part.hyperparameters() for part in parts):
            known = ", ".join(k for part in parts for k in part.hyperparameters()) or "none"
            raise FedloomError(f"method: {name} has no {shown(key)}; its hyper-parameters are: {known}")
    set_here = [key.strip() for key, equals, value in items if equals and value.strip() != "?"]

    def named(keys: list[str]) -> Names:
        return [(part.name, key) for key in keys for part in parts if key in part.hyperparameters()]

    return closed, named(asked), named(set_here)
