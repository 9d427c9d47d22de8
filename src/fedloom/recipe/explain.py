"""A recipe's fields as text: type, default and meaning of each, from the model itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from fedloom.recipe.fields import FLAGS, NAMED_GROUPS, NO_EFFECT_FIELDS, Recipe


@dataclass(frozen=True)
class FieldText:
    """One field; `name` is dotted inside a group: data.validation."""

    name: str
    type: str
    default: str  # as YAML writes it; empty: none
    meaning: str

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]

    @property
    def flag(self) -> str | None:
        """The flag of `fedloom run` that sets it; None: `--set` does."""
        field = self.top if self.name in (self.top, f"{self.top}.name") else ""
        named = self.name == self.top or field in NAMED_GROUPS
        return f"--{field.replace('_', '-')}" if field in FLAGS and named else None

    @property
    def changes_result(self) -> bool:
        return self.name not in NO_EFFECT_FIELDS


def field_texts(model: type[BaseModel] = Recipe, inside: str = "") -> Iterator[FieldText]:
    """Every field, groups opened, in the order of the model."""
    for name, field in model.model_fields.items():
        annotation: Any = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from field_texts(annotation, f"{inside}{name}.")
            continue
        default = "" if field.default is PydanticUndefined else yaml_text(field.default)
        yield FieldText(f"{inside}{name}", type_text(annotation), default, field.description or "")


def yaml_text(value: Any) -> str:
    """A default as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def type_text(annotation: Any) -> str:
    """A type as a reader writes it: int | full, list of str."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(str(value) for value in inner)
    if origin is Annotated:
        return type_text(inner[0])
    if origin in (Union, UnionType):
        return " | ".join(type_text(choice) for choice in inner)
    if origin in (tuple, list):
        return "list of " + type_text(inner[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "fields"
    return "null" if annotation is type(None) else str(annotation.__name__)


def choices(annotation: Any) -> list[str]:
    """The words that a field may have, as far as its type lists them."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return [str(value) for value in inner]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        name = annotation.model_fields.get("name")
        return choices(name.annotation) if name is not None else []
    return [word for choice in inner for word in choices(choice)] if origin in (Union, UnionType, Annotated) else []
