"""What can be refused before torch is imported: a field's impossible value, and names that no registry has.

The same sentences come from the full check, which follows; this one is only sooner. It judges fields one by one: what depends
on several of them, on a protocol or on the user's own code is left to the full check.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fedloom.cli import names
from fedloom.cli.kinds import KINDS
from fedloom.errors import FedloomError
from fedloom.nearest import nearest, plain, unknown_data, unknown_metric, unknown_model, unknown_part, unknown_term
from fedloom.paths import data_files
from fedloom.recipe import NAMED_GROUPS, Recipe
from fedloom.recipe.sentence import sentence


def check(fields: Mapping[str, Any], methods: str | None = None) -> None:
    """Refuse a recipe's fields, or methods of a comparison, that are wrong whatever else is given."""
    if fields.get("protocol") is not None:
        _check_protocol(str(fields["protocol"]))
    if not fields.get("parts") and "fedloom.methods" not in sys.modules:  # the user's code may add names
        _check_names(fields, methods)
    # last, since building the validator takes longer than reading names
    _check_fields({name: value for name, value in fields.items() if name != "protocol"})


def _check_names(fields: Mapping[str, Any], methods: str | None) -> None:
    for text in (fields.get("method"), methods):
        if isinstance(text, str):
            _check_methods(text)
    if isinstance(fields.get("split"), str):
        _check_split(fields["split"])
    if isinstance(fields.get("model"), str):
        _check_model(fields["model"])
    data = fields.get("data")
    if isinstance(name := data.get("name") if isinstance(data, Mapping) else data, str):
        _check_data(name)
    _check_metrics(fields.get("metrics"))


def check_listed(kind: str, name: str) -> None:
    """Refuse a name that `fedloom list KIND NAME` cannot describe."""
    known, typed = KINDS[kind].names(), name.strip().lower()
    if kind == "methods":
        if typed.replace("-", "").replace("_", "").isalnum() and typed not in known:
            raise FedloomError(unknown_part(typed, known).replace("method:", "list:", 1))
    elif kind == "papers":
        check_paper(name)
    elif name not in known:
        raise FedloomError(f"list: {nearest(KINDS[kind].noun, name, known, kind)}")


def check_paper(name: str) -> None:
    """Refuse a paper that `fedloom reproduce` does not know."""
    if plain(name) not in (known := names.papers()):
        raise FedloomError(nearest("paper", name, known))


def _check_protocol(name: str) -> None:
    known = names.protocols()
    if name not in known and plain(name) not in names.papers():
        raise FedloomError(nearest("protocol", name, known))


def _check_data(text: str) -> None:
    """A plain name; a path is left to the one who opens it."""
    name, known = text.strip(), names.data()
    if re.fullmatch(r"[\w-]+", name) and name not in known:
        raise FedloomError(unknown_data(name, known, data_files(), os.environ.get("FEDLOOM_DATA"), names.data_forms()))


def _check_fields(fields: Mapping[str, Any]) -> None:
    try:
        Recipe.model_validate(dict(fields))
    except ValidationError as error:
        # a problem of a whole group, such as a setting that its optimizer does not have, may be solved by other fields
        if any(problem["loc"] and problem["loc"][-1] not in (*NAMED_GROUPS, "deploy") for problem in error.errors()):
            raise FedloomError(sentence(error, Recipe)) from None


def _check_methods(text: str) -> None:
    known = names.methods()
    for row in text.split(";"):
        total = re.sub(r"\([^()]*\)", "", row.partition("@")[0])  # without hyper-parameters and settings
        for term in total.split("+"):
            name = term.strip().lower()
            if re.fullmatch(r"[a-z_][\w-]*", name) and name not in known:
                raise FedloomError(unknown_part(name, known))


def _check_split(text: str) -> None:
    known = names.splits()
    for number, stage in enumerate(text.split(";")):
        terms = re.sub(r"^\s*\d+\s*:", "", stage) if number else stage
        for term in re.split(r"\+(?!\d)", terms):
            name = term.partition(":")[0].strip()
            if re.fullmatch(r"[a-z-]+", name) and name not in known and not (number and name == "same"):
                raise FedloomError(unknown_term(text, name, known))


def _check_model(text: str) -> None:
    known, name = names.models(), re.split(r"[(?]", text.strip())[0].strip()
    if re.fullmatch(r"[\w-]+", name) and name not in known:
        prefixes = [prefix.removesuffix(":") for prefix in names.model_sources()]
        raise FedloomError(f"model: {unknown_model(name, known, prefixes)}")


def _check_metrics(value: Any) -> None:
    listed = value.split(",") if isinstance(value, str) else value or ()
    known = names.metrics()
    for name in (str(item).strip() for item in listed):
        if name and name not in known:
            raise FedloomError(unknown_metric(name, known))
