"""What a command leaves, and the two ways in which scripts read it: --quiet and --json, the same for every command.

A command prints for people through `console` and returns an Outcome. With --json or --quiet the consoles are silenced while it
works, progress included, and its outcome is printed: all of it as JSON, or the paths alone.
"""

from __future__ import annotations

import inspect
import json as json_text
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from fedloom.cli import console

PANEL = "Output"


@dataclass(frozen=True)
class Outcome:
    data: Any = None  # of --json
    paths: Sequence[Path | str] = ()  # of --quiet: where the result is
    code: int = 0  # 1: some of the work failed, and the rest is there


def reported(command: Callable[..., Outcome]) -> Callable[..., int]:
    """The command with --quiet and --json; it returns the exit code."""

    @wraps(command)
    def carried_out(*, quiet: bool, json: bool, **values: Any) -> int:
        with console.silenced(quiet or json):
            outcome = command(**values)
        if json:
            console.line(json_text.dumps(plain(outcome.data), indent=2, ensure_ascii=False))
        elif quiet:
            for path in outcome.paths:
                console.line(str(path))
        return outcome.code

    parameters = inspect.signature(command, eval_str=True).parameters.values()
    carried_out.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in parameters),
            _flag("quiet", Option("--quiet", "-q", help="print nothing but errors and the result's path")),
            _flag("json", Option("--json", help="print the result as JSON and nothing else")),
        ]
    )
    carried_out.__annotations__ = {}
    return carried_out


def _flag(name: str, option: Any) -> inspect.Parameter:
    option.rich_help_panel = PANEL
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])


def plain(value: Any) -> Any:
    """The value as JSON can write it: numbers that are not finite are null, paths are texts."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    if hasattr(value, "tolist"):  # numbers and arrays of numpy and torch
        return plain(value.tolist())
    return str(value)
