"""A validation error as one sentence: which field, what is allowed, what was given."""

from __future__ import annotations

import re
import types
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fedloom.errors import brief
from fedloom.nearest import advice

PLAIN = {
    "a valid integer, unable to parse string as an integer": "a whole number",
    "a valid integer, got a number with a fractional part": "a whole number",
    "a valid integer": "a whole number",
    "a valid number, unable to parse string as a number": "a number",
    "a valid number": "a number",
    "a valid boolean, unable to interpret input": "true or false",
    "a valid boolean": "true or false",
    "a valid string": "a text",
    "a valid tuple": "a list",
}


def sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """The first problem; an unknown field comes first, since it may be a misspelling of what is missing."""
    problems = error.errors()
    first = min(problems, key=lambda item: item["type"] != "extra_forbidden")
    loc = [str(item) for item in first["loc"]]
    if not loc:  # of the recipe as a whole
        return _plain(str(first["msg"]))
    group, path = _group(model, loc)
    if first["type"] == "extra_forbidden":
        hint = advice(loc[-1], group.model_fields, "fields", f"known are {', '.join(group.model_fields)}")
        return f"{brief('.'.join([*path, loc[-1]]) if re.fullmatch(r'[a-z_]+', loc[-1]) else loc[-1])}: unknown field; {hint}"
    same = [item for item in problems if item["loc"][:1] == first["loc"][:1] and item["input"] is first["input"]]
    allowed = " or ".join(dict.fromkeys(_plain(str(item["msg"])) for item in same)).replace(" or must be ", " or ")
    name = ".".join([*path, loc[len(path)]]) if len(loc) > len(path) else ".".join(path)
    if first["type"] == "model_type" and (inner := _model(group.model_fields[loc[-1]].annotation)) is not None:
        named = "a name, or " if "name" in inner.model_fields else ""
        allowed = f"must be {named}fields of it: {', '.join(inner.model_fields)}"
    if name == "data.normalize":
        allowed = "must be set, none, or two lists of one number per channel: means, then deviations"
    return f"{brief(name)}: {allowed} (got {brief(first['input'])})"


def _group(model: type[BaseModel], loc: list[str]) -> tuple[type[BaseModel], list[str]]:
    """The innermost group of fields that the location goes into, and the names that lead there."""
    path: list[str] = []
    for name in loc[:-1]:
        field = model.model_fields.get(name)
        inner = _model(field.annotation) if field is not None else None
        if inner is None:
            break
        model, path = inner, [*path, name]
    return model, path


def _model(annotation: Any) -> type[BaseModel] | None:
    choices = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return next((item for item in choices if isinstance(item, type) and issubclass(item, BaseModel)), None)


def _plain(message: str) -> str:
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    for words, plain in PLAIN.items():
        message = message.replace(words, plain)
    return message
