"""The text of a split: terms joined by +, each a name or name:number; stages joined by ; with the round they begin in.

dirichlet:0.5+noise:0.1             an owner and a change; the order does not matter
noise:0.1                           no owner: iid
iid; 30: shards:2                   from round 30 on clients hold other images
iid; 30: noise:0.1                  a later stage without an owner: who holds what stays as it is
iid+noise:0.1; 30: same             same: nothing but that
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from fedloom.data.splits.dirichlet import Dirichlet
from fedloom.data.splits.dirichlet_client import DirichletClient
from fedloom.data.splits.domains import Domains, Inside
from fedloom.data.splits.iid import Iid
from fedloom.data.splits.quantity import Quantity
from fedloom.data.splits.scheme import SCHEMES, Change, Owner, Scheme, required
from fedloom.data.splits.shards import Shards
from fedloom.data.splits.uneven import Uneven
from fedloom.errors import LINE, FedloomError, shown
from fedloom.values import whole

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
STAGE = re.compile(r"\s*(\d+)\s*:\s*(?=\D|$)")  # a round, a colon, a sum
SAME = "same"
INNER = (Iid, Shards, Dirichlet, DirichletClient, Quantity, Uneven)  # what clients of one domain may divide it by


@dataclass(frozen=True)
class Sum:
    """One stage. Without an owner, who holds what is as in the stage before."""

    begin: int
    owner: Owner | None
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        terms = ([] if self.owner is None else [str(self.owner)]) + [str(change) for change in self.changes]
        text = "+".join(terms) or SAME
        return text if self.begin == 1 else f"{self.begin}: {text}"


def parse(spec: str) -> tuple[Sum, ...]:
    """The stages of a split, or a sentence about what is wrong with it."""
    stages = []
    for number, text in enumerate(spec.split(";")):
        begin, terms = 1, text
        if number:
            found = STAGE.match(text)
            begin = (whole(found[1]) if found else None) or 0
            if not found or begin < 2:
                raise FedloomError(
                    f"split {shown(spec)}: behind the semicolon a round (2 or more), a colon and a split are expected, "
                    f"as in 'iid; 30: shards:2'; found is {shown(text.strip())}"
                )
            terms = text[found.end() :]
        stages.append(_sum(spec, begin, terms))
    for before, after in pairwise(stages):
        if before.begin >= after.begin:
            raise FedloomError(
                f"split {shown(spec)}: the rounds in which it changes must rise; {after.begin} comes after {before.begin}"
            )
    return tuple(stages)


def spell(stages: Sequence[Sum]) -> str:
    return "; ".join(str(stage) for stage in stages)


def _sum(spec: str, begin: int, text: str) -> Sum:
    words = [word.strip() for word in re.split(r"\+(?!\d)", text)]  # 1e+3 is one number
    if begin > 1 and SAME in words:
        words.remove(SAME)
        kept = True
    else:
        kept = False
    terms = [_term(spec, word) for word in words]
    changes = sorted((term for term in terms if isinstance(term, Change)), key=lambda change: change.order)
    for one, other in pairwise(changes):
        if one.name == other.name:
            raise FedloomError(f"split {shown(spec)}: {one.name} comes twice; keep one")
    owners = [term for term in terms if isinstance(term, Owner)]
    if kept and owners:
        raise FedloomError(f"split {shown(spec)}: {SAME} and {owners[0].name} both decide who holds what; keep one")
    return Sum(begin, _owner(spec, owners, begin), tuple(changes))


def _owner(spec: str, owners: list[Owner], begin: int) -> Owner | None:
    """The one owner that a sum of owners means."""
    if not owners:
        return Iid() if begin == 1 else None
    rest = sorted((owner for owner in owners if not isinstance(owner, Domains)), key=lambda owner: owner.name)
    domains = len(owners) - len(rest)
    if domains > 1:
        raise FedloomError(f"split {shown(spec)}: domains comes twice; keep one")
    if len(rest) == 2 and isinstance(rest[0], Quantity) and isinstance(rest[1], Shards):
        rest = [Uneven(rest[1].shards, rest[0].concentration)]
    elif len(rest) == 2 and isinstance(rest[0], Iid) and isinstance(rest[1], Quantity):
        rest = rest[1:]  # a random division of uneven sizes
    names = [owner.name for owner in rest] if len(rest) > 1 else ["domains", *(owner.name for owner in rest)]
    if len(rest) > 1 or (domains and rest and not isinstance(rest[0], INNER)):
        raise FedloomError(f"split {shown(spec)}: {names[0]} and {names[1]} both decide who holds what; keep one")
    if not domains:
        return rest[0]
    return Inside(rest[0]) if rest and not isinstance(rest[0], Iid) else Domains()


def _term(spec: str, term: str) -> Scheme:
    name, colon, text = (piece.strip() for piece in term.partition(":"))
    if name not in SCHEMES:
        near = get_close_matches(name[:LINE], SCHEMES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise FedloomError(
            f"split {shown(spec)}: there is no scheme {shown(name)}; {hint}allowed are {', '.join(sorted(SCHEMES))}"
        )
    scheme = SCHEMES[name]
    wanted = fields(scheme)
    if not wanted:
        if colon:
            raise FedloomError(f"split {shown(spec)}: {name} takes no number; write {scheme.example}")
        return scheme()
    if wanted[0].type in (str, "str"):
        if not text:
            raise FedloomError(f"split {shown(spec)}: {name} needs a path; write {scheme.example}")
        return scheme(text)  # type: ignore[call-arg]
    given = [piece.strip() for piece in text.split(":")] if colon else []
    if not required(scheme) <= len(given) <= len(wanted):
        kind = "whole " if wanted[0].type in (int, "int") else ""
        many = f"a {kind}number" if len(wanted) == 1 or not given else f"at most {len(wanted)} numbers"
        raise FedloomError(f"split {shown(spec)}: {name} needs {many}; write {scheme.example}")
    values: dict[str, Any] = {}
    for field, piece in zip(wanted, given, strict=False):
        counted = "int" in str(field.type)
        value = whole(piece) if counted else float(piece) if NUMBER.fullmatch(piece) else None
        if value is None:
            kind = "whole " if counted else ""
            raise FedloomError(f"split {shown(spec)}: {name} needs a {kind}number; write {scheme.example}")
        values[field.name] = value
    return scheme(**values)
