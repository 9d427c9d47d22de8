"""What `--over` means to a search: which values of which settings are tried.

lr=log:0.003..3       any number from 0.003 to 3, uniform in its logarithm
fd.beta=0.3..0.99     a hyper-parameter of a part, in all methods that have the part
epochs=1..5           whole numbers, since both ends are
batch=16,32,64        one of these, as in `sweep`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.errors import FedloomError, shown
from fedloom.methods.api.search import Choices, Range, Span
from fedloom.recipe import LocalOptimizer, Recipe
from fedloom.studies.sweep import cut
from fedloom.values import Unreadable, parse

# settings of local training and aggregation; all others say what is compared, or change no bit
TUNABLE = (
    *("lr", "momentum", "weight_decay", "batch", "epochs", "steps", "schedule", "clip", "augment", "weighting"),
    *("head_init", *(f"optimizer.{name}" for name in LocalOptimizer.model_fields)),
)
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_SPAN = re.compile(rf"\s*(log:)?\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*")
Over = Sequence[str] | Mapping[str, Any]


def read_over(over: Over) -> dict[str, Range]:
    """Ranges by setting. Whether methods have a part is decided by the caller, who knows them."""
    ranges: dict[str, Range] = {}
    for name, values in _pairs(over):
        if name in ranges:
            raise FedloomError(f"over: {name} is given twice; give its values or its range once")
        _refuse_untunable(name)
        ranges[name] = values if isinstance(values, Span | Choices) else _range(name, values)
    return ranges


def _pairs(over: Over) -> list[tuple[str, Any]]:
    if isinstance(over, str):
        over = [over]
    if isinstance(over, Mapping):
        return [(str(name), values) for name, values in over.items()]
    pairs = []
    for text in over:
        name, equals, values = text.partition("=")
        if not equals or not name.strip():
            raise FedloomError(
                f"over: cannot read {shown(text)}; write lr=log:0.003..3, fd.beta=0.3..0.99 or batch=16,32"
            )
        head, dot, rest = name.strip().rpartition(".")
        pairs.append((f"{head}{dot}{rest.replace('-', '_')}", values))
    return pairs


def _refuse_untunable(name: str) -> None:
    field = name.partition(".")[0]
    if name in TUNABLE or ("." in name and field not in Recipe.model_fields):
        return
    if field in Recipe.model_fields:
        raise FedloomError(
            f"over: {name} cannot be tuned; tunable are {', '.join(TUNABLE)}, and hyper-parameters as PART.NAME"
        )
    raise FedloomError(
        f"over: {shown(name)} is not known; tunable are {', '.join(TUNABLE)}, and hyper-parameters as PART.NAME"
    )


def _range(name: str, given: Any) -> Range:
    if not isinstance(given, str):
        if not isinstance(given, Sequence) or not given:
            raise FedloomError(f"over: {name} is {shown(given)}; give a text such as log:0.003..3, or a list of values")
        return _choices(name, tuple(given))
    if matched := _SPAN.fullmatch(given):
        low, high = (_bound(text) for text in matched.group(2, 3))
        try:
            return Span(low, high, log=matched.group(1) is not None, source="--over")
        except FedloomError as error:
            raise FedloomError(f"over: {name}: {error}") from None
    if ".." in given or given.startswith("log:"):
        raise FedloomError(f"over: cannot read the range {shown(given)} of {name}; write LOW..HIGH or log:LOW..HIGH")
    texts = cut(given)
    if not all(texts):
        raise FedloomError(f"over: {name} has an empty value; write {name}=VALUE,VALUE or {name}=LOW..HIGH")
    try:
        return _choices(name, tuple(_bound(t) if re.fullmatch(_NUMBER, t) else parse(t) for t in texts))
    except Unreadable as error:
        raise FedloomError(f"over: cannot read the values of {name}: one {error}") from None


def _choices(name: str, values: tuple[Any, ...]) -> Choices:
    for value in values:
        if values.count(value) > 1:
            raise FedloomError(f"over: {name}={value} is given twice")
    return Choices(values, source="--over")


def _bound(text: str) -> int | float:
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
