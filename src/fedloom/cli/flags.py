"""The recipe's fields as flags of a command. Help and defaults are the recipe's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape
from typer import Argument, Option

from fedloom import api
from fedloom.recipe import FLAGS, NAMED_GROUPS, Recipe, assign, read_recipe

PANEL = "Recipe"
RecipeFile = Annotated[Path | None, Argument(help="a YAML file; flags override its fields", show_default=False)]


def recipe_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the recipe's flags in place of its **flags."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    flags = [_parameter(name, str | None, _option(name)) for name in FLAGS]
    flags.append(
        _parameter(
            "parts",
            list[str] | None,
            Option("--parts", help=Recipe.model_fields["parts"].description, rich_help_panel=PANEL),
        )
    )
    flags.append(
        _parameter(
            "set_",
            list[str] | None,
            Option("--set", help="any other field: a.b=value (docs/recipe.md)", rich_help_panel=PANEL),
        )
    )
    keyword_only = [p.replace(kind=p.KEYWORD_ONLY) for p in own]
    command.__signature__ = inspect.Signature([*keyword_only, *flags])  # type: ignore[attr-defined]
    command.__annotations__ = {}
    return command


def _option(name: str) -> Any:
    field = Recipe.model_fields[name]
    if name in NAMED_GROUPS:
        field = type(field.default).model_fields["name"]
    value = ",".join(field.default) if isinstance(field.default, tuple) else field.default
    default = "" if value is None else f" [{value}]"
    kind = {int: "INTEGER", float: "NUMBER"}.get(type(field.default), "TEXT")
    return Option(
        f"--{name.replace('_', '-')}",
        help=escape(f"{field.description}{default}"),
        metavar=kind,
        show_default=False,
        rich_help_panel=PANEL,
    )


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def recipe_fields(path: Path | None, flags: dict[str, Any]) -> dict[str, Any]:
    """The fields of a recipe file, overridden by flags, then by --set."""
    settings = flags.pop("set_") or []
    if not flags["parts"]:
        flags.pop("parts")
    given = {name: value for name, value in flags.items() if value is not None}
    fields = api.gather(read_recipe(path) if path else None, given)
    for setting in settings:
        assign(fields, setting)
    return fields
