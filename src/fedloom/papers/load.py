"""Reading the papers' files. Each is read once, when it is first asked for."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import yaml
from pydantic import ValidationError

from fedloom.errors import FedloomError
from fedloom.nearest import nearest, plain
from fedloom.papers.schema import Paper, Protocol
from fedloom.recipe.sentence import sentence

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the files are the package's own, and large
INHERITED = ("about", "rounds_times_epochs", "sizes", "not_printed", "measured", "notes")
PAPERS = ("fedbabu", "feddrplus", "fedfn", "fednn", "fnrfl")


def key_of(name: str) -> str:
    """A paper's key, such as feddrplus, from it or from a name such as FedDr+."""
    written = plain(name)
    if written not in PAPERS:
        raise FedloomError(nearest("paper", name, PAPERS))
    return written


def paper(name: str) -> Paper:
    """By its key or its name."""
    return _read(key_of(name))


def papers() -> dict[str, Paper]:
    return {key: _read(key) for key in PAPERS}


@cache
def protocols() -> dict[str, Protocol]:
    """All protocols by name, each with what it extends filled in."""
    return {name: _extended(paper, name) for paper in papers().values() for name in paper.protocols}


def protocol(name: str) -> Protocol:
    """By its name; a paper's name means the first of its protocols."""
    known = protocols()
    if name in known:
        return known[name]
    try:
        return known[next(iter(paper(name).protocols))]
    except FedloomError:
        raise FedloomError(nearest("protocol", name, known)) from None


@cache
def _read(key: str) -> Paper:
    text = (files("fedloom.papers") / "files" / f"{key}.yaml").read_text(encoding="utf-8")
    return check(text, f"{key}.yaml")


def check(text: str, where: str) -> Paper:
    """A paper from the text of its file; the first thing that is wrong with it becomes one sentence."""
    try:
        return Paper.model_validate(yaml.load(text, _Loader))
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", -1) + 1
        raise FedloomError(f"{where} is not valid YAML (line {line})") from None
    except ValidationError as error:
        raise FedloomError(f"{where}: {_problem(error)}") from None


def _problem(error: ValidationError) -> str:
    """The first problem with the place in the file; of a top-level field with the nearest name."""
    first = error.errors()[0]
    place = ".".join(str(item) for item in first["loc"])
    if len(first["loc"]) == 1 and first["type"] != "value_error":
        return sentence(error, Paper)
    return f"{place}: {first['msg']}" if place else str(first["msg"])


def _extended(paper: Paper, name: str) -> Protocol:
    own = paper.protocols[name]
    if own.extends is None:
        return own
    base = _extended(paper, own.extends)
    given = {field: getattr(own, field) for field in own.model_fields_set}
    inherited = {field: getattr(base, field) for field in INHERITED}
    merged = {"recipe": base.recipe | own.recipe, "parts": base.parts | own.parts}
    return Protocol(**{**inherited, **given, **merged})
