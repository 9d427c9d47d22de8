"""Functions that take the recipe's fields as keywords: the signature that notebooks complete, and help for every field.

Editors read the same from the TypedDict of keywords.py, which is the annotation of `**fields`.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

from fedloom.keywords import ProtocolKeywords, RecipeKeywords
from fedloom.recipe import NAMED_GROUPS, Recipe

F = TypeVar("F", bound=Callable[..., Any])
WIDTH = 100


def with_keywords(function: F) -> F:
    """Give a function with `**fields: Unpack[RecipeKeywords]` one keyword for each field."""
    signature = inspect.signature(function)
    *own, fields = signature.parameters.values()
    kind = RecipeKeywords if "RecipeKeywords" in str(fields.annotation) else ProtocolKeywords
    names = [name for name in kind.__annotations__ if name not in signature.parameters]
    keywords = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(name),
            annotation=kind.__annotations__[name].__forward_arg__,
        )
        for name in names
    ]
    setattr(function, "__signature__", signature.replace(parameters=[*own, *keywords]))  # noqa: B010
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nFields of the recipe:\n\n{_help(names)}\n"
    return function


def _default(name: str) -> Any:
    """The recipe's own, as a user would write it; None for a keyword that is no field."""
    field = Recipe.model_fields.get(name)
    if field is None or name == "deploy":
        return None
    return field.default.name if name in NAMED_GROUPS else field.default


def _help(names: list[str]) -> str:
    lines = []
    for name in names:
        field = Recipe.model_fields.get(name)
        if field is not None:
            text = f"{name}: {field.description} [{_default(name)}]"
            lines += textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="        ")
    return "\n".join(lines)
