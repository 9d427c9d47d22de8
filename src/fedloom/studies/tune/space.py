"""The search space of a method: which settings are tuned, in which range, and the setting that it has without tuning.

Tuned are the ranges of `--over`, and what the method leaves open: `fd(beta=?)`, `@ lr=?`. Without `--over` every method has
a space of its own: the learning rate, and the ranges that its parts declare. A part whose hyper-parameters the method sets,
all or some, is left as it is, and so are settings behind an @.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedloom.engine.given import given_recipe
from fedloom.errors import FedloomError, shown
from fedloom.methods.api.grammar import method, open_method
from fedloom.methods.api.part import Method
from fedloom.methods.api.search import PLAIN, Choices, Range, Span
from fedloom.recipe import Recipe, assign
from fedloom.studies.cells import row_settings
from fedloom.studies.tune.rates import ADAM_RATE, rate_range, rate_scale, rounded_number

Point = dict[str, Any]  # values by setting: {"lr": 0.31, "fd.beta": 0.9}


@dataclass(frozen=True)
class Space:
    row: str  # as the user wrote it
    text: str  # the sum as the user wrote it, without open values
    method: Method
    settings: tuple[str, ...]  # fixed ones, behind the @
    ranges: Mapping[str, Range]
    default: Point
    further: tuple[Point, ...] = ()  # settings that are also tried first
    widened: Mapping[str, Range] = field(default_factory=dict)  # declared ranges that the default lay outside of
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)  # of the base recipe

    def sum(self, point: Point) -> str:
        """The sum of parts with the tuned hyper-parameters."""
        if not any(_is_hyperparameter(name) for name in point):
            return self.text
        parts = []
        for part in self.method.parts:
            own = {name.partition(".")[2]: v for name, v in point.items() if name.partition(".")[0] == part.name}
            parts.append(type(part)(**{**part.values(), **own}) if own else part)
        return str(Method(tuple(parts)))

    def allows(self, name: str, value: Any) -> bool:
        """Whether a setting can have this value."""
        try:
            method(self.recipe({**self.default, name: value}).method)
        except FedloomError:
            return False
        return True

    def chosen_settings(self, point: Point) -> dict[str, Any]:
        """All settings behind the @: the fixed ones and the tuned ones."""
        fixed = dict(setting.split("=", 1) for setting in self.settings)
        return {**fixed, **{name: value for name, value in point.items() if not _is_hyperparameter(name)}}

    def recipe(self, point: Point, **more: Any) -> Recipe:
        changed = dict(self.fields)
        for name, value in self.chosen_settings(point).items():
            assign(changed, f"{name}={_text(value)}")
        return given_recipe({**changed, "method": self.sum(point), **more})


Usual = Callable[[str], str]  # a row with the settings that a protocol gives it


def space_of(row: str, fields: Mapping[str, Any], over: Mapping[str, Range], usual: Usual = lambda row: row) -> Space:
    """`fields`: of the base recipe. `over`: ranges of all methods; those of parts that this method lacks are left out."""
    text, _, behind = row.partition("@")
    settings = row_settings(behind)
    asked = [setting.partition("=")[0] for setting in settings if setting.endswith("=?")]
    fixed = [setting for setting in settings if not setting.endswith("=?")]
    opened = open_method(text)
    closed = str(opened.method) if opened.open else text.strip()
    sum_text, _, usual_behind = usual(f"{closed} @ {' '.join(fixed)}" if fixed else closed).partition("@")
    parts = open_method(sum_text).method
    brought = [s for s in row_settings(usual_behind) if s.partition("=")[0] not in {f.partition("=")[0] for f in fixed}]
    whole = Space(row, sum_text.strip(), parts, tuple(fixed), {}, {}, fields=fields)
    usual_recipe = replace(whole, settings=(*fixed, *brought)).recipe({})

    given = {f"{part}.{name}" for part, name in opened.given} | {setting.partition("=")[0] for setting in fixed}
    chosen: dict[str, Range] = {}
    for name, values in over.items():
        part = name.partition(".")[0]
        if _is_hyperparameter(name) and part not in (own.name for own in parts.parts):
            continue
        if name in given:
            raise FedloomError(f"over: {name} is tuned, but the method {shown(row)} sets it too; leave out one of them")
        chosen[name] = values
    declared = _declared(parts, usual_recipe)
    wanted = [*asked, *(f"{part}.{name}" for part, name in opened.open)]
    if not over:
        touched = {part for part, _ in (*opened.given, *opened.open)}
        wanted += [n for n in declared if n not in given and n.partition(".")[0] not in touched]
    widened: dict[str, Range] = {}
    for name in wanted:
        if name in chosen:
            continue
        if name not in declared:
            raise FedloomError(
                f"methods: {shown(row)} leaves {name} open, and it has no range of its own; add --over {name}=LOW..HIGH"
            )
        current = _current(name, parts, usual_recipe, fields)
        chosen[name] = _widened(declared[name], current)
        if _is_number(current) and not contains(declared[name], current):
            widened[name] = declared[name]
    chosen = dict(sorted(chosen.items(), key=lambda item: _is_hyperparameter(item[0])))  # recipe fields first
    kept = tuple(s for s in brought if s.partition("=")[0] not in chosen)
    usual_values = {name: _current(name, parts, usual_recipe, fields) for name in chosen}
    default = {
        name: current if name in widened else _inside(chosen[name], current) for name, current in usual_values.items()
    }
    space = replace(whole, settings=(*fixed, *kept), ranges=chosen, default=default, widened=widened)
    scaled = any(setting.startswith("lr=") for setting in (*fixed, *brought))  # a rate of the method's own
    return replace(space, further=() if scaled else _further(space, usual_recipe))


def _declared(method: Method, recipe: Recipe) -> dict[str, Range]:
    """The ranges of the method's own: its rate, and what its parts declare."""
    ranges: dict[str, Range] = {"lr": rate_range(method, recipe)}
    for part in method.parts:
        ranges |= {f"{part.name}.{name}": values for name, values in part.search_ranges.items()}
    return ranges


def _further(space: Space, recipe: Recipe) -> tuple[Point, ...]:
    """The default with the rate that suits the parts' losses."""
    scale, span = rate_scale(space.method), space.ranges.get("lr")
    if recipe.optimizer.name != "sgd" or scale is PLAIN or not isinstance(span, Span):
        return ()
    point = {**space.default, "lr": rounded(span, recipe.lr * scale.middle)}
    return () if point == space.default else (point,)


def _current(name: str, method: Method, recipe: Recipe, fields: Mapping[str, Any]) -> Any:
    """The value without tuning."""
    first, _, rest = name.partition(".")
    if _is_hyperparameter(name):
        part = method.named(first)
        if rest not in part.hyperparameters():
            known = ", ".join(part.hyperparameters()) or "none"
            raise FedloomError(f"over: {first} has no {shown(rest)}; its hyper-parameters are: {known}")
        return part.values("json")[rest]
    if name == "lr" and recipe.optimizer.name != "sgd" and "lr" not in fields:
        return ADAM_RATE
    value = getattr(recipe, first)
    return getattr(value, rest) if rest else value


def _widened(values: Range, current: Any) -> Range:
    """A declared range reaches to the value without tuning, where a logarithmic one can."""
    if isinstance(values, Choices) or not _is_number(current) or (values.log and current <= 0):
        return values
    return replace(values, low=min(values.low, current), high=max(values.high, current))


def _inside(values: Range, current: Any) -> Any:
    """The value without tuning, moved into the range."""
    if isinstance(values, Choices):
        return current if current in values.values else values.values[0]
    if not _is_number(current):
        return rounded(values, math.sqrt(values.low * values.high) if values.log else (values.low + values.high) / 2)
    return min(max(current, values.low), values.high)


def contains(values: Range, value: Any) -> bool:
    if isinstance(values, Choices):
        return value in values.values
    return bool(values.low <= value <= values.high)


def rounded(span: Span, value: float) -> float:
    """A number of the range with few digits, so that a table can show what was run."""
    short = round(value) if span.whole else rounded_number(value)
    return min(max(short, span.low), span.high)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_hyperparameter(name: str) -> bool:
    first, dot, _ = name.partition(".")
    return bool(dot) and first not in Recipe.model_fields
