"""The recipe's fields as flags of a command. Help, types, defaults and groups are the recipe's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from rich.markup import escape
from typer import Argument, Option

from fedloom.cli import complete, early
from fedloom.recipe import FLAGS, NAMED_GROUPS, Recipe, assign, merged, read_recipe
from fedloom.recipe.explain import choices
from fedloom.recipe.groups import group_of, grouped

RecipeFile = Annotated[
    Path | None,
    Argument(help="a YAML file; flags override its fields", show_default=False, autocompletion=complete.recipe_file),
]
COMPLETIONS: dict[str, Callable[..., complete.Pairs]] = {
    "method": complete.method,
    "model": complete.model,
    "split": complete.split,
    "data": complete.data,
    "metrics": complete.metrics,
}
T = TypeVar("T")


def recipe_flags(command: Callable[..., T]) -> Callable[..., T]:
    """Mark a command that takes the recipe's flags as its **flags."""
    command.takes_recipe = True  # type: ignore[attr-defined]
    return command


def with_flags(command: Callable[..., T]) -> Callable[..., T]:
    """A command whose signature has the recipe's flags in place of its **flags, if it is marked so."""
    if not hasattr(command, "takes_recipe") or hasattr(command, "__signature__"):
        return command
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    ordered = [name for names in grouped().values() for name in names if name in FLAGS]
    flags = [_parameter(name, str | None, _option(name)) for name in ordered]
    protocol = Option(
        help="a paper's settings (fedloom list protocols); other flags override them",
        autocompletion=complete.protocol,
        rich_help_panel=group_of("method"),
    )
    parts = Option("--parts", help=Recipe.model_fields["parts"].description, rich_help_panel=group_of("method"))
    set_ = Option(
        "--set",
        help="any other field: a.b=value (fedloom recipe --explain)",
        metavar="FIELD=VALUE",
        autocompletion=complete.field,
    )
    flags += [
        _parameter("protocol", str | None, protocol),
        _parameter("parts", list[str] | None, parts),
        _parameter("set_", list[str] | None, set_),
    ]
    keyword_only = [p.replace(kind=p.KEYWORD_ONLY) for p in own]
    command.__signature__ = inspect.Signature([*keyword_only, *flags])  # type: ignore[attr-defined]
    command.__annotations__ = {}
    return command


@cache
def _option(name: str) -> Any:
    field, whole = Recipe.model_fields[name], Recipe.model_fields[name]
    if name in NAMED_GROUPS:
        field = type(field.default).model_fields["name"]
    value = ",".join(field.default) if isinstance(field.default, tuple) else field.default
    kind = {int: "INTEGER", float: "NUMBER"}.get(type(field.default), "TEXT")
    completion = COMPLETIONS.get(name)
    if completion is None and choices(whole.annotation):
        completion = complete.words(name)
    return Option(
        f"--{name.replace('_', '-')}",
        help=escape(field.description or ""),
        metavar=kind,
        show_default=False if value is None else str(value),
        rich_help_panel=group_of(name),
        autocompletion=completion,
    )


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def recipe_fields(path: Path | None, flags: dict[str, Any], methods: str | None = None) -> dict[str, Any]:
    """The fields of a recipe file, overridden by flags, then by --set. `methods`: those of a comparison, checked with them."""
    settings = flags.pop("set_") or []
    if not flags["parts"]:
        flags.pop("parts")
    given = {name: value for name, value in flags.items() if value is not None}
    fields = merged(read_recipe(path) if path else {}, given)
    for setting in settings:
        assign(fields, setting)
    early.check(fields, methods)
    return fields
