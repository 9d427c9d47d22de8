"""The text of a split: terms joined by +, each a name or name:number; stages separated by ; with their first round.

dirichlet:0.5+noise:0.1      a partitioner and a shift, in any order
noise:0.1                    without a partitioner: iid
iid; 30: shards:2            from round 30 on, clients hold other images
iid; 30: noise:0.1           a later stage without a partitioner keeps the partition
iid+noise:0.1; 30: same      the partition is kept, without shifts
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations, pairwise
from typing import Any

from fedloom.data.partition.iid import Iid
from fedloom.data.partition.partitioner import Partitioner, combined
from fedloom.data.scheme import SCHEMES, Scheme, required
from fedloom.data.shifts.shift import STEPS, Shift
from fedloom.errors import FedloomError, shown
from fedloom.nearest import unknown_term
from fedloom.values import whole

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
STAGE = re.compile(r"\s*(\d+)\s*:\s*(?=\D|$)")  # a round, a colon, a sum
SAME = "same"


@dataclass(frozen=True)
class StageSpec:
    """One stage. Without a partitioner it keeps the partition of the stage before."""

    begin: int
    partitioner: Partitioner | None
    shifts: tuple[Shift, ...]

    def __str__(self) -> str:
        terms = ([] if self.partitioner is None else [str(self.partitioner)]) + [str(shift) for shift in self.shifts]
        text = "+".join(terms) or SAME
        return text if self.begin == 1 else f"{self.begin}: {text}"


def parse(spec: str) -> tuple[StageSpec, ...]:
    """The stages of a split; raises an error if the text is not valid."""
    stages = []
    for number, text in enumerate(spec.split(";")):
        begin, terms = 1, text
        if number:
            match = STAGE.match(text)
            begin = (whole(match[1]) if match else None) or 0
            if not match or begin < 2:
                raise FedloomError(
                    f"split {shown(spec)}: after the semicolon, expected a round (2 or more), a colon and a split, "
                    f"as in 'iid; 30: shards:2'; found {shown(text.strip())}"
                )
            terms = text[match.end() :]
        stages.append(_stage(spec, begin, terms))
    for before, after in pairwise(stages):
        if before.begin >= after.begin:
            raise FedloomError(
                f"split {shown(spec)}: the first rounds of its stages must increase; {after.begin} comes after {before.begin}"
            )
    return tuple(stages)


def spell(stages: Sequence[StageSpec]) -> str:
    return "; ".join(str(stage) for stage in stages)


def _stage(spec: str, begin: int, text: str) -> StageSpec:
    words = [word.strip() for word in re.split(r"\+(?!\d)", text)]  # 1e+3 is one number
    keeps_partition = begin > 1 and SAME in words
    if keeps_partition:
        words.remove(SAME)
    terms = [_term(spec, word) for word in words]
    shifts = sorted((term for term in terms if isinstance(term, Shift)), key=_order)
    for one, other in pairwise(shifts):
        if one.name == other.name:
            raise FedloomError(f"split {shown(spec)}: {one.name} occurs twice; keep one")
    partitioners = [term for term in terms if isinstance(term, Partitioner)]
    if keeps_partition and partitioners:
        raise FedloomError(
            f"split {shown(spec)}: {SAME} and {partitioners[0].name} both decide who holds what; keep one"
        )
    return StageSpec(begin, _partitioner(spec, partitioners, begin), tuple(shifts))


def _order(shift: Shift) -> tuple[int, str]:
    return STEPS.index(shift.step), shift.name


def _partitioner(spec: str, terms: list[Partitioner], begin: int) -> Partitioner | None:
    """The one partitioner that a sum of them means."""
    if not terms:
        return Iid() if begin == 1 else None
    ordered = sorted(terms, key=lambda term: term.name)
    for one, other in pairwise(ordered):
        if one.name == other.name:
            raise FedloomError(f"split {shown(spec)}: {one.name} occurs twice; keep one")
    if (total := combined(ordered)) is not None:
        return total
    one, other = next(pair for pair in combinations(ordered, 2) if combined(pair) is None)
    raise FedloomError(f"split {shown(spec)}: {one.name} and {other.name} both decide who holds what; keep one")


def _term(spec: str, term: str) -> Scheme:
    name, colon, text = (piece.strip() for piece in term.partition(":"))
    if name not in SCHEMES:
        raise FedloomError(unknown_term(spec, name, SCHEMES))
    scheme = SCHEMES[name]
    parameters = fields(scheme)
    if not parameters:
        if colon:
            raise FedloomError(f"split {shown(spec)}: {name} takes no number; write {scheme.example}")
        return scheme()
    if parameters[0].type in (str, "str"):
        if not text:
            raise FedloomError(f"split {shown(spec)}: {name} needs a path; write {scheme.example}")
        return scheme(text)  # type: ignore[call-arg]
    given = [piece.strip() for piece in text.split(":")] if colon else []
    if not required(scheme) <= len(given) <= len(parameters):
        kind = "an integer" if parameters[0].type in (int, "int") else "a number"
        need = kind if len(parameters) == 1 or not given else f"at most {len(parameters)} numbers"
        raise FedloomError(f"split {shown(spec)}: {name} needs {need}; write {scheme.example}")
    values: dict[str, Any] = {}
    for field, piece in zip(parameters, given, strict=False):
        integer = "int" in str(field.type)
        value = whole(piece) if integer else float(piece) if NUMBER.fullmatch(piece) else None
        if value is None:
            kind = "an integer" if integer else "a number"
            raise FedloomError(f"split {shown(spec)}: {name} needs {kind}; write {scheme.example}")
        values[field.name] = value
    return scheme(**values)
