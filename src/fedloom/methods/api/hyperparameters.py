"""Hyper-parameters of parts: constrained numbers, their spelling in recipes, and what is said about a bad one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field, ValidationError

from fedloom.errors import shown


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is expected, not true or false")  # noqa: TRY004 - pydantic wants a ValueError
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_number)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_number)]
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(_number)]
Count = Annotated[int, Field(ge=1), BeforeValidator(_number)]


def spell(value: Any) -> str:
    """A value as recipes write it: a plain word unquoted, unless YAML reads it as something else; all others as JSON."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w-]*", value) and yaml.safe_load(value) == value:
        return value
    return json.dumps(value)


def explain(error: ValidationError, known: Mapping[str, Any]) -> str:
    """What is wrong with the first bad hyper-parameter; the sentence continues the part's name."""
    first = error.errors()[0]
    key = ".".join(str(item) for item in first["loc"])
    if first["type"] == "extra_forbidden":
        return f" has no {shown(key)}; its hyper-parameters are: {', '.join(known) or 'none'}"
    if first["type"] == "missing":
        return f" needs a value for {key!r}"
    reason = str(first["msg"]).removeprefix("Value error, ")
    return f"({key}={shown(first['input'])}): {reason[0].lower()}{reason[1:]}"
