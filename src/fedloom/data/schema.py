"""How rows of a table, or texts, become inputs of a net: fitted on training rows once, then applied to any rows.

A schema is a JSON file. A run on a table writes it to its folder (`schema.json`); `schema=PATH` in a source applies it. So
every site of a federation prepares its own rows in the same way without seeing the rows of others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedloom.errors import FedloomError, brief
from fedloom.paths import obstacle

LARGEST = 64 << 20  # bytes of a schema file
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Classes = Annotated[tuple[Name, ...], Field(min_length=2, max_length=100_000)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class NumericColumn(_Strict):
    """A missing value becomes the median; then (x - mean) / deviation."""

    kind: Literal["numeric"] = "numeric"
    name: Name
    median: Number
    mean: Number
    deviation: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    indicator: bool = False  # whether a further input says 1 where the value is missing

    @property
    def inputs(self) -> list[str]:
        return [self.name, f"{self.name} missing"] if self.indicator else [self.name]


class CategoricalColumn(_Strict):
    """One input per category: 1 for the value's own, else 0. A value that is not listed has zeros only."""

    kind: Literal["categorical"] = "categorical"
    name: Name
    categories: tuple[Annotated[str, Field(max_length=10_000)], ...]
    missing: bool = False  # whether a missing value is a category of its own, the last

    @property
    def inputs(self) -> list[str]:
        return [f"{self.name}={category}" for category in self.categories] + [f"{self.name} missing"] * self.missing


class TableSchema(_Strict):
    inputs: Literal["features"] = "features"
    target: Name
    classes: Classes
    rows: Annotated[int, Field(ge=0)]  # training rows that it was fitted on
    columns: Annotated[tuple[NumericColumn | CategoricalColumn, ...], Field(min_length=1)]

    @property
    def input_names(self) -> list[str]:
        return [name for column in self.columns for name in column.inputs]


class TextSchema(_Strict):
    inputs: Literal["tokens"] = "tokens"
    text: Name  # the column
    target: Name
    classes: Classes
    rows: Annotated[int, Field(ge=0)]
    tokenizer: Name = "words"  # "words": our own; else the folder or hub name of a transformers tokenizer
    words: tuple[str, ...] = ()  # of our own tokenizer: the tokens 2, 3 and so on
    length: Annotated[int, Field(ge=1, le=100_000)]


Schema: TypeAlias = TableSchema | TextSchema
_EITHER: TypeAdapter[Schema] = TypeAdapter(Annotated[Schema, Field(discriminator="inputs")])


def read_schema(path: Path) -> Schema:
    if reason := obstacle(path):
        raise FedloomError(f"schema {str(path)!r} cannot be read ({reason}); expected a JSON file")
    if path.stat().st_size > LARGEST:
        raise FedloomError(f"schema {str(path)!r} has more than {LARGEST:,} bytes")
    return parse_schema(path.read_bytes(), f"schema {str(path)!r}")


def parse_schema(text: str | bytes, where: str = "schema") -> Schema:
    try:
        return _EITHER.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(item) for item in first["loc"])
        raise FedloomError(
            f"{where} is not a schema as a run writes it ({brief(place)}: {brief(first['msg'])})"
        ) from None
    except RecursionError:
        raise FedloomError(f"{where} is nested too deeply") from None
