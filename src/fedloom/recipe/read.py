"""Reading recipes: a YAML file, and `--set a.b=c`. Values are checked when a Recipe is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError, brief, shown
from fedloom.paths import obstacle
from fedloom.recipe.fields import NAMED_GROUPS
from fedloom.values import TEXT, Unreadable, parse


def read_recipe(path: str | Path) -> dict[str, Any]:
    """The fields of a YAML file, not yet checked."""
    piped = str(path).startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/"))
    if not piped and (reason := obstacle(path)):
        raise FedloomError(f"recipe: cannot read {brief(path)}: {reason}")
    try:
        with Path(path).open("rb") as file:
            text = file.read(4 * TEXT + 1).decode("utf-8")
        fields = deepcopy(_parse(text))
    except OSError as error:
        raise FedloomError(f"recipe: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FedloomError(f"recipe: cannot read {path}: not a text file") from None
    except Unreadable as error:
        raise FedloomError(f"recipe: {path} {error}") from None
    if not isinstance(fields, dict):
        raise FedloomError(f"recipe: {path} must hold fields such as `method: fedavg`, one per line")
    return fields


# the recipe of a run folder is read several times, and parsing YAML takes milliseconds
_parse = lru_cache(maxsize=64)(parse)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields overridden by others; a plain text in place of a group changes the group's name alone.

    A new name also replaces the folder of the run that the recipe was written by.
    """
    whole = {**base, **changes}
    if changes.get("name") is not None and changes.get("out") is None:
        whole.pop("out", None)
    for group in NAMED_GROUPS:
        if isinstance(changes.get(group), str) and isinstance(base.get(group), dict):
            whole[group] = {**base[group], "name": changes[group]}
    return whole


def assign(fields: dict[str, Any], setting: str) -> None:
    """Apply `a.b=c` to nested fields in place."""
    key, equals, value = setting.partition("=")
    if not equals or not key.strip():
        raise FedloomError(f"--set: cannot read {shown(setting)}; write field=value or group.field=value")
    names = [item.strip().replace("-", "_") for item in key.split(".", 4)]
    if names[0] in NAMED_GROUPS and isinstance(fields.get(names[0]), str):
        fields[names[0]] = {"name": fields[names[0]]}
    place = fields
    for item in names[:-1]:
        inner = place.setdefault(item, {})
        if not isinstance(inner, dict):
            raise FedloomError(f"--set: {shown(key)} goes into {shown(item)}, which is a single value")
        place = inner
    try:
        place[names[-1]] = parse(value)
    except Unreadable as error:
        raise FedloomError(f"--set: cannot read the value of {shown(setting)}, which {error}") from None
