"""Reading the papers' files. Each is read once, when it is first asked for."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import yaml
from pydantic import ValidationError

from fedloom.errors import FedloomError
from fedloom.papers.nearest import nearest
from fedloom.papers.schema import Paper, Protocol
from fedloom.recipe.sentence import sentence

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the files are the package's own, and large
PAPERS = ("fedbabu", "feddrplus", "fedfn", "fednn", "fnrfl")


def paper(name: str) -> Paper:
    """By its key, such as feddrplus, or its name, such as FedDr+."""
    keys = {key: key for key in PAPERS} | {"feddr+": "feddrplus", "fnr-fl": "fnrfl", "feddr": "feddrplus", "fnr": "fnrfl"}
    key = keys.get(name.strip().lower())
    if key is None:
        raise FedloomError(nearest("paper", name, PAPERS))
    return _read(key)


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
    if name.strip().lower() in PAPERS:
        return known[next(iter(_read(name.strip().lower()).protocols))]
    raise FedloomError(nearest("protocol", name, known))


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
        raise FedloomError(f"{where}: {sentence(error, Paper)}") from None


def _extended(paper: Paper, name: str) -> Protocol:
    own = paper.protocols[name]
    if own.extends is None:
        return own
    base = _extended(paper, own.extends)
    given = {field: getattr(own, field) for field in own.model_fields_set}
    inherited = {field: getattr(base, field) for field in Protocol.model_fields if field not in ("stand_in", "implied", "where_to_get")}
    return Protocol(**{**inherited, **given, "recipe": base.recipe | own.recipe, "parts": base.parts | own.parts})
