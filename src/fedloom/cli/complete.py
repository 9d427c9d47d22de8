"""Values that a shell completes: names, papers and their tables, run folders. Nothing here imports torch.

Each function takes what is typed so far and gives pairs of a value and what it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from typer import Context

from fedloom.cli import names
from fedloom.paths import RUNS
from fedloom.recipe import Recipe
from fedloom.recipe.explain import choices, field_texts

Pairs = list[tuple[str, str]]
PREFIXES = ("folder:", "hf:", "table:")


def method(ctx: Context, incomplete: str) -> Pairs:
    """The last term of a sum, or of several: `fedavg; scaffold + f`."""
    return _last_term(incomplete, names.methods(ctx.params.get("parts") or ()), r"[;+]")


def model(incomplete: str) -> Pairs:
    return _matching(incomplete, {**names.models(), **names.model_sources()})


def split(incomplete: str) -> Pairs:
    return _last_term(incomplete, names.splits(), r"[;+]")


def metrics(ctx: Context, incomplete: str) -> Pairs:
    return _last_term(incomplete, names.metrics(ctx.params.get("parts") or ()), ",")


def data(incomplete: str) -> Pairs:
    return _matching(incomplete, {**names.data(), **dict.fromkeys(PREFIXES, "")}) + _files(incomplete, ".npz")


def protocol(incomplete: str) -> Pairs:
    return _matching(incomplete, names.protocols())


def reproduction(incomplete: str) -> Pairs:
    known = {"list": "what can be reproduced", **names.papers(), **(names.tables() if "/" in incomplete else {})}
    return _matching(incomplete, known)


def paper_or_table(incomplete: str) -> Pairs:
    return _matching(incomplete, {**names.papers(), **(names.tables() if "/" in incomplete else {})})


def run_folder(incomplete: str) -> Pairs:
    """Run folders below runs/, and folders by their path."""
    recipes = [path for depth in ("*", "*/*", "*/*/*") for path in RUNS.glob(f"{depth}/recipe.yaml")]
    known = {str(path.parent): "" for path in sorted(recipes)}
    folders = {f"{path}/": "" for path in _beside(incomplete) if path.is_dir() and str(path) not in known}
    return _matching(incomplete, {**known, **folders})


def recipe_file(incomplete: str) -> Pairs:
    return _files(incomplete, ".yaml", ".yml")


def field(incomplete: str) -> Pairs:
    """`data.validation=` of --set and --over."""
    return _matching(incomplete, {f"{text.name}=": text.meaning for text in field_texts()})


def recipe_or_field(incomplete: str) -> Pairs:
    return recipe_file(incomplete) + _matching(incomplete, {text.name: text.meaning for text in field_texts()})


def words(name: str) -> Callable[[str], Pairs]:
    """Completes the words that a field of the recipe may have."""

    def complete_words(incomplete: str) -> Pairs:
        return _matching(incomplete, dict.fromkeys(choices(Recipe.model_fields[name].annotation), ""))

    return complete_words


def list_name(ctx: Context, incomplete: str) -> Pairs:
    """The second argument of `fedloom list`, by the first."""
    parts = ctx.params.get("parts") or ()
    kinds = {
        "methods": lambda: names.methods(parts),
        "models": names.models,
        "metrics": lambda: names.metrics(parts),
        "data": names.data,
        "splits": names.splits,
        "protocols": names.protocols,
        "papers": names.papers,
    }
    kind = kinds.get(ctx.params.get("what") or "")
    return _matching(incomplete, kind()) if kind else []


def _matching(incomplete: str, known: Mapping[str, str]) -> Pairs:
    return [(name, about) for name, about in known.items() if name.startswith(incomplete)]


def _last_term(incomplete: str, known: Mapping[str, str], separator: str) -> Pairs:
    begin = max((match.end() for match in re.finditer(separator + r"\s*", incomplete)), default=0)
    return [(incomplete[:begin] + name, about) for name, about in _matching(incomplete[begin:], known)]


def _beside(incomplete: str) -> Iterable[Path]:
    """What is in the folder that is typed so far."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return []


def _files(incomplete: str, *endings: str) -> Pairs:
    paths = [f"{path}/" if path.is_dir() else str(path) for path in _beside(incomplete)]
    return [(path, "") for path in paths if path.startswith(incomplete) and path.endswith(("/", *endings))]
