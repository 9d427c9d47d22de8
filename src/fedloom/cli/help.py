"""How commands explain themselves: arguments with their help, types, defaults as `[50]`, examples at the end."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from rich.markup import escape
from typer.core import TyperArgument, TyperCommand, TyperOption
from typer.models import ArgumentInfo

from fedloom.cli.examples import EXAMPLES


class Command(TyperCommand):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        texts = _argument_texts(self.callback)
        for parameter in self.params:
            if not isinstance(parameter, TyperArgument | TyperOption):
                continue
            if isinstance(parameter, TyperArgument):  # click 8.5 drops the help that typer gives it
                parameter.help = parameter.help or texts.get(str(parameter.name))
            if parameter.metavar is None and parameter.type.name == "float":
                parameter.metavar = "NUMBER"
            if default := _default(parameter):
                parameter.help = f"{parameter.help or ''} {escape(f'[{default}]')}".strip()
            parameter.show_default = False


def epilog(name: str) -> str | None:
    """The examples of a command; typer makes a line of each paragraph."""
    examples = EXAMPLES.get(name)
    return None if not examples else "\n\n".join(["[bold]Examples[/bold]", *(f"  {escape(line)}" for line in examples)])


def _default(parameter: TyperArgument | TyperOption) -> str:
    shown, value = parameter.show_default, parameter.default
    if isinstance(shown, str):
        return shown
    if not shown or parameter.required:
        return ""
    if isinstance(value, bool):
        return parameter.opts[0] if value and getattr(parameter, "secondary_opts", None) else ""
    return str(value) if isinstance(value, str | int | float | Path) and str(value) else ""


def _argument_texts(function: Any) -> dict[str, str | None]:
    """Help of the arguments, from the annotations of the command's function."""
    texts: dict[str, str | None] = {}
    if function is None:
        return texts
    for name, parameter in inspect.signature(function).parameters.items():
        for mark in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(mark, ArgumentInfo):
                texts[name] = mark.help
    return texts
