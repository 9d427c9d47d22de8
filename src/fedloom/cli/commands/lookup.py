"""The commands that look something up: list, recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from fedloom.cli import complete, console, early
from fedloom.cli.flags import recipe_fields, recipe_flags
from fedloom.cli.kinds import KINDS
from fedloom.cli.outcome import Outcome
from fedloom.errors import FedloomError
from fedloom.nearest import near, nearest
from fedloom.recipe import Recipe
from fedloom.recipe import recipe as checked
from fedloom.recipe.explain import FieldText, field_texts
from fedloom.recipe.groups import grouped


def list_(
    what: Annotated[
        str | None,
        Argument(
            help=" | ".join(KINDS),
            show_default=False,
            autocompletion=lambda incomplete: [
                (name, kind.about) for name, kind in KINDS.items() if name.startswith(incomplete)
            ],
        ),
    ] = None,
    name: Annotated[
        str | None,
        Argument(
            help="one of these, with all that is known of it; also a sum of methods",
            show_default=False,
            autocompletion=complete.list_name,
        ),
    ] = None,
    parts: Annotated[list[str] | None, Option(help="a module or .py file with parts of your own")] = None,
) -> Outcome:
    """List the names that recipes may use, or describe one of them."""
    if what is None:
        return _list_kinds()
    if what not in KINDS:
        proposals = near(what, KINDS)
        hint = f"did you mean {proposals[0]}? " if proposals else ""
        raise FedloomError(f"list: there is no list {what!r}; {hint}allowed are {', '.join(KINDS)}")

    if name is not None and not parts:
        early.check_listed(what, name)

    from fedloom.io.user_code import import_parts
    from fedloom.report.catalog.kinds import kind
    from fedloom.report.catalog.render import description_lines, list_lines

    import_parts(tuple(parts or ()))
    width = console.width()
    if name is not None:
        description = kind(what).describe(name)
        console.lines(description_lines(description, width))
        return Outcome(description.to_json())
    entries = kind(what).entries()
    console.lines([*list_lines(entries, width), "", f"fedloom list {what} NAME describes one of them."])
    return Outcome([entry.to_json() for entry in entries])


def _list_kinds() -> Outcome:
    from fedloom.report.catalog.entry import Entry
    from fedloom.report.catalog.render import list_lines

    counts = {kind: len(known.names()) for kind, known in KINDS.items()}
    entries = [Entry(kind, f"{counts[kind]:>3}  {known.about}") for kind, known in KINDS.items()]
    console.lines(["Names that recipes may use:", *list_lines(entries, console.width()), ""])
    console.line("fedloom list methods lists them; fedloom list methods scaffold describes one.")
    return Outcome([{"name": kind, "about": KINDS[kind].about, "count": counts[kind]} for kind in KINDS])


@recipe_flags
def recipe(
    recipe: Annotated[
        Path | None,
        Argument(
            metavar="[RECIPE|FIELD]",
            help="a YAML file, whose fields flags override; or a field to explain",
            show_default=False,
            autocompletion=complete.recipe_or_field,
        ),
    ] = None,
    explain: Annotated[
        bool, Option("--explain", help="what fields mean: every one, or those that the argument names")
    ] = False,
    **flags: Any,
) -> Outcome:
    """Print the complete recipe of a file and flags as YAML, or explain a recipe's fields.

    The output is a valid recipe: every field with its value. `fedloom recipe FIELD` explains one field or group.
    """
    text = None if recipe is None else str(recipe)
    if explain or (text is not None and _fields(text) and not recipe.exists()):  # type: ignore[union-attr]
        return _explain(text)
    fields = recipe_fields(recipe, flags)
    if fields.get("protocol") is not None:
        from fedloom.api import with_protocol

        fields = with_protocol(fields)

    made = checked(fields)
    open_fields = {"split", "clients"} - fields.keys() if made.data.name != Recipe().data.name else set()
    values = made.model_dump(mode="json", exclude=open_fields)
    text = made.to_yaml(exclude=open_fields).rstrip()
    console.line(text)
    if open_fields:
        console.line(f"# {' and '.join(sorted(open_fields))}: decided by the data if they name their clients")
    return Outcome(values, [text])


def _fields(name: str) -> list[FieldText]:
    """The field of this name, or those of a group."""
    wanted = name.lstrip("-").replace("-", "_")
    return [text for text in field_texts() if text.name == wanted or text.name.startswith(f"{wanted}.")]


def _explain(name: str | None) -> Outcome:
    texts = list(field_texts()) if name is None else _fields(name)
    if not texts:
        known = [text.name for text in field_texts()]
        raise FedloomError(f"recipe: {nearest('field', str(name), known, 'fields')}")

    from fedloom.report.catalog.entry import Entry
    from fedloom.report.catalog.render import list_lines

    entries = [
        Entry(text.name, _about(text), title)
        for title, names in grouped().items()
        for name in names
        for text in texts
        if text.top == name
    ]
    console.lines(list_lines(entries, console.width()))
    data = [
        {"name": text.name, "type": text.type, "default": text.default, "meaning": text.meaning, "flag": text.flag}
        for text in texts
    ]
    return Outcome(data)


def _about(text: FieldText) -> str:
    notes = [text.type, *([f"default {text.default}"] if text.default else []), *([text.flag] if text.flag else [])]
    notes += [] if text.changes_result else ["changes no result"]
    return f"{text.meaning} [{'; '.join(notes)}]"
