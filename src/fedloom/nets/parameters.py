"""Parameters of nets: `mlp(hidden=200x200)`, `net.py:build(width=3)`, `timm:NAME(pretrained=true)`.

A net's parameters are those of its function after (shape, classes), except `inputs`. Values are read by their annotation, or
by the type of the default where there is none: int, float, bool (true, false), str, Literal, `X | None` (none), and
tuple[int, ...], written 200x200. `NAME?key=value&key=value` is another spelling of `NAME(key=value, key=value)`. In a stored
recipe only what differs from the default is written, in the order of the signature.
"""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from fedloom.errors import FedloomError, brief, shown
from fedloom.values import Unreadable, parse

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Widths = tuple[Count, ...]

_REQUIRED = inspect.Parameter.empty
_WORD = re.compile(r"[\w./:@~+-]+")


@dataclass(frozen=True)
class Parameter:
    name: str
    annotation: Any
    default: Any

    def __str__(self) -> str:
        return self.name if self.default is _REQUIRED else f"{self.name}={spell(self.default)}"


def split_text(text: str) -> tuple[str, dict[str, str]]:
    """A net's name, and its parameters as they are written."""
    text = text.strip()
    if text.endswith(")") and (begin := _opening(text)):
        name, items = text[:begin].strip(), _pieces(text[begin + 1 : -1])
    elif "?" in text:
        name, _, query = text.partition("?")
        items = query.split("&")
    else:
        return text, {}
    values: dict[str, str] = {}
    for item in items:
        key, equals, value = (piece.strip() for piece in item.partition("="))
        if not equals or not key.isidentifier() or not value:
            raise FedloomError(f"cannot read {shown(item.strip())} in {shown(text)}; write NAME(key=value, key=value)")
        if key in values:
            raise FedloomError(f"{brief(key)} stands twice in {shown(text)}; keep one")
        values[key] = value
    return name, values


def parameters_of(function: Callable[..., Any]) -> tuple[dict[str, Parameter], bool]:
    """The parameters of a net's function by name, and whether it takes any others (**options)."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function in C has none
        return {}, False
    hints = _hints(function)
    parameters: dict[str, Parameter] = {}
    anything = False
    for place, (name, parameter) in enumerate(signature.parameters.items()):
        anything |= parameter.kind is parameter.VAR_KEYWORD
        if place < 2 and parameter.kind is not parameter.KEYWORD_ONLY:
            continue  # shape and classes
        if name != "inputs" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            parameters[name] = Parameter(name, hints.get(name, Any), parameter.default)
    return parameters, anything


def read_values(
    name: str, known: Mapping[str, Parameter], given: Mapping[str, str], anything: bool = False
) -> dict[str, Any]:
    """The given parameters of the net called `name`, checked; in the order of the signature."""
    unknown = [key for key in given if key not in known]
    if unknown and not anything:
        allowed = ", ".join(map(str, known.values()))
        raise FedloomError(
            f"{name} has no parameter {shown(unknown[0])}; "
            + (f"its parameters are {allowed}" if allowed else "it has none")
        )
    for parameter in known.values():
        if parameter.default is _REQUIRED and parameter.name not in given:
            raise FedloomError(f"{name} needs a value of {parameter.name}: write {name}({parameter.name}=VALUE)")
    values = {key: _value(name, known[key], given[key]) for key in known if key in given}
    return values | {key: _plain(name, key, given[key]) for key in sorted(unknown)}


def spell_model(name: str, known: Mapping[str, Parameter], values: Mapping[str, Any]) -> str:
    """The canonical text of a net with these parameters."""
    differing = {key: value for key, value in values.items() if key not in known or known[key].default != value}
    inner = ", ".join(f"{key}={spell(value)}" for key, value in differing.items())
    return f"{name}({inner})" if inner else name


def spell(value: Any) -> str:
    """A value as recipes write it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "x".join(str(item) for item in value)
    if isinstance(value, str):
        return value if _WORD.fullmatch(value) else '"' + value.replace('"', "'") + '"'
    return str(value)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = function.__init__ if inspect.isclass(function) else function
    try:
        return get_type_hints(target, include_extras=True)
    except Exception:  # annotations may name what exists for type checkers only
        return {}


def _value(model: str, parameter: Parameter, text: str) -> Any:
    annotation = parameter.annotation
    if annotation is Any and parameter.default not in (_REQUIRED, None):
        annotation = type(parameter.default) if not isinstance(parameter.default, tuple | list) else tuple[int, ...]
    if annotation is Any:
        return _plain(model, parameter.name, text)
    try:
        value = _read(annotation, _unquoted(text))
        return TypeAdapter(annotation).validate_python(value)
    except (ValueError, ValidationError) as error:
        detail = _bounds(error) if isinstance(error, ValidationError) else str(error)
    except Exception:  # an annotation that neither we nor pydantic can read: a user's class
        return _plain(model, parameter.name, text)
    raise FedloomError(f"{model}: {parameter.name} is {shown(text)}; {detail}")


def _read(annotation: Any, text: str) -> Any:
    """The value of a text by its annotation; ValueError says what is expected."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _read(arguments[0], text)
    if origin in (Union, types.UnionType):
        if type(None) in arguments and text.lower() in ("none", "null"):
            return None
        reasons = []
        for choice in arguments:
            if choice is not type(None):
                try:
                    return _read(choice, text)
                except ValueError as error:
                    reasons.append(str(error))
        raise ValueError(" or ".join([*reasons, *(["none"] if type(None) in arguments else [])]))
    if origin is Literal:
        for choice in arguments:
            if spell(choice) == text:
                return choice
        raise ValueError(f"allowed are {', '.join(map(spell, arguments))}")
    if origin in (tuple, list) or annotation in (tuple, list):
        if not re.fullmatch(r"\d{1,9}(x\d{1,9})*", text):
            raise ValueError("whole numbers joined by x are expected, such as 200x200")
        return tuple(int(number) for number in text.split("x"))
    if annotation is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("allowed are true and false")
        return text.lower() == "true"
    if annotation is int:
        if not re.fullmatch(r"[+-]?\d{1,18}", text):
            raise ValueError("a whole number is expected")
        return int(text)
    if annotation is float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError("a number is expected")
        return number
    if annotation is str:
        return text
    raise TypeError(annotation)


def _bounds(error: ValidationError) -> str:
    message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    return message.replace("Input should be", "it must be")


def _plain(model: str, name: str, text: str) -> Any:
    """A value without annotation, as YAML reads it."""
    try:
        value = parse(text)
    except Unreadable as error:
        raise FedloomError(f"{model}: the value of {name}, {shown(text)}, {error}") from None
    if not isinstance(value, str | int | float | bool | None):
        raise FedloomError(f"{model}: {name} is {shown(text)}; a number, a word, true, false or none is expected")
    return None if value == "none" else value


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _opening(text: str) -> int:
    """The place of the bracket that the last one closes; 0 if there is none."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if depth == 0:
            return place
    return 0


def _pieces(text: str) -> list[str]:
    """Split at commas outside of double quotes and brackets."""
    pieces, depth, quoted = [""], 0, False
    for sign in text:
        quoted ^= sign == '"'
        depth += 0 if quoted else (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0 and not quoted:
            pieces.append("")
        else:
            pieces[-1] += sign
    return pieces
