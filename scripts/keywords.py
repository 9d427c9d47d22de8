"""The source of src/fedloom/keywords.py: the recipe's fields as typed keywords of fl.run, fl.compare and the others.

`python scripts/docs_tables.py` writes it together with the tables, and `--check` compares it.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from fedloom.recipe import NAMED_GROUPS, Recipe

PATH = "src/fedloom/keywords.py"
OBJECTS = {  # fields that take objects in Python
    "data": "DataLike",
    "split": "SplitLike",
    "model": "str | nn.Module",
    "method": "str | Method | Part",
    "out": "str | Path | None",
    "init": "str | Path | None",
}
APART = ("out",)  # a parameter of its own of fl.reproduce

HEAD = '''"""The recipe's fields as typed keywords. Written by scripts/docs_tables.py from recipe/fields.py: change it there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from torch import nn

from fedloom.data import DataLike, SplitLike
from fedloom.methods import Method, Part


class ProtocolKeywords(TypedDict, total=False):
    """Fields of a recipe that override a protocol."""

'''
MIDDLE = '''

class RecipeKeywords(ProtocolKeywords, total=False):
    """All fields of a recipe, and what stands for several of them."""

'''
TAIL = '''    protocol: str
    """a paper's settings (`fl.protocols()`), which the other keywords override"""

    head: str
    """name of the last layer of a `model` that is an nn.Module, where it is not found by itself"""
'''


def source() -> str:
    """The text of the module."""
    common = [_field(name) for name in Recipe.model_fields if name not in APART]
    return HEAD + "\n".join(common) + MIDDLE + "\n".join(_field(name) for name in APART) + "\n" + TAIL


def _field(name: str) -> str:
    field = Recipe.model_fields[name]
    kind = OBJECTS.get(name) or _type(field.annotation)
    if name in NAMED_GROUPS and name not in OBJECTS:
        inner: Any = field.annotation
        kind = f"{_type(inner.model_fields['name'].annotation)} | Mapping[str, Any]"
    lines = [f"    {name}: {kind}"]
    text = f'    """{field.description}"""'
    lines += [text] if len(text) <= 120 else _wrapped(str(field.description))
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    lines, line = [], '    """'
    for word in text.split():
        if len(line) + len(word) > 116:
            lines.append(line.rstrip())
            line = "    "
        line += word + " "
    return [*lines, line.rstrip() + '"""']


def _type(annotation: Any) -> str:
    """A type as Python writes it, without constraints."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(inner[0])
    if origin is Literal:
        return "Literal[" + ", ".join(f'"{value}"' for value in inner) + "]"
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(_type(choice) for choice in inner))
    if origin in (tuple, list):
        return f"{_type(inner[0])} | Sequence[{_type(inner[0])}]"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "Mapping[str, Any]"
    return "None" if annotation is NoneType else str(annotation.__name__)
