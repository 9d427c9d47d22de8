"""A Dataset of the Hugging Face datasets library becomes the content of a data set: inputs, labels and groups.

Inputs are a column of images, of texts (which become tokens) or of lists of numbers (features, or tokens already).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from fedloom.data.arrays import HOLD_OUT, Content, ordered
from fedloom.data.decode import stack_images
from fedloom.data.memory import as_array
from fedloom.data.schema import Schema, TextSchema
from fedloom.data.text.tokenize import TextOptions, tokens
from fedloom.errors import FedloomError
from fedloom.extras import install
from fedloom.io.archives import Array

ROLES = ("image", "text", "array", "label", "domain", "client", "writer")


class Unreachable(FedloomError):
    """The dataset could not be downloaded or opened."""


def datasets_library() -> Any:
    try:
        return import_module("datasets")
    except ImportError as error:
        raise Unreachable(f'data "hf:…" needs the datasets library, which is missing: {install("hub")}') from error


def hub_splits(where: str, loaded: Any, test: str | None = None) -> tuple[Any, Any | None]:
    """Training and test split of a Dataset or DatasetDict. `test`: the name of the latter, where it is not the usual one."""
    library = datasets_library()
    if isinstance(loaded, library.Dataset):
        if test is not None:
            raise FedloomError(f"{where} has no splits, so none is called {test}; leave test= out")
        return loaded, None
    if not isinstance(loaded, library.DatasetDict):
        raise FedloomError(f"{where}: it is a {type(loaded).__name__}; expected a Dataset or a DatasetDict")
    for name in ("train", *([test] if test is not None else [])):
        if name not in loaded:
            raise FedloomError(f"{where} has the splits {', '.join(loaded)}; expected one called {name}")
    names = ("test", "validation", "valid") if test is None else (test,)
    return loaded["train"], next((loaded[name] for name in names if name in loaded), None)


def hub_content(
    where: str,
    train: Any,
    test: Any | None,
    options: Mapping[str, str],
    tokenizing: TextOptions | None = None,
    schema: Schema | None = None,
    resize: int | None = None,
) -> Content:
    """`options`: columns by role (image, text, array, label, domain, client, writer), where their types do not tell."""
    library = datasets_library()
    parts = [part.with_format(None) for part in ([train] if test is None else [train, test])]
    columns = _Columns(where, train, options)
    label = columns.label(library)
    y, class_names = _codes(where, library, parts, label)
    content: Content = {"y": y, "class_names": class_names}
    kind, column = columns.inputs(library)
    if kind == "image":
        if schema is not None:
            raise FedloomError(f"{where}: the schema is for tables or texts, and the column {column} holds images")
        content["x"] = stack_images(_images(where, parts, column), sum(len(part) for part in parts), resize)
    elif kind == "array":
        content["x"] = as_array(column, [value for part in parts for value in part[column][:]])
    else:
        content |= _tokens(where, parts, column, label, y, class_names, tokenizing, schema, test is not None)
    for role in ("domain", "client", "writer"):
        if role in options:
            content[role], names = _codes(where, library, parts, columns.named(role))
            content |= {f"{role}_names": names} if role != "writer" else {}
    if test is not None:
        content["is_test"] = np.arange(len(y)) >= len(train)
    return content


@dataclass(frozen=True)
class _Columns:
    where: str
    split: Any
    options: Mapping[str, str]

    def named(self, role: str) -> str:
        if self.options[role] not in self.split.features:
            columns = ", ".join(self.split.features)
            raise FedloomError(f"{self.where} has no column {self.options[role]!r}; its columns are {columns}")
        return self.options[role]

    def label(self, library: Any) -> str:
        if "label" in self.options:
            return self.named("label")
        typed = self._of_type(library.ClassLabel)
        if not typed and "label" in self.split.features:
            return "label"
        return self._only("label", typed, "ClassLabel")

    def inputs(self, library: Any) -> tuple[str, str]:
        """What the samples are (image, text or array), and their column."""
        for role in ("image", "text", "array"):
            if role in self.options:
                return role, self.named(role)
        images = self._of_type(library.Image)
        taken = {self.options.get(role) for role in ("label", "domain", "client", "writer")} | {"label"}
        texts = [] if images else [name for name in self._texts() if name not in taken]
        if not images and texts:
            return "text", self._only("text", texts, "string")
        arrays = [] if images else [name for name in self._arrays() if name not in taken]
        if arrays:
            return "array", self._only("array", arrays, "list")
        if not images:
            raise FedloomError(
                f"{self.where} has no column of images, texts or lists of numbers, but {', '.join(self.split.features)}; for a "
                "table, use fl.Dataset.from_frame(dataset.to_pandas(), target=COLUMN), or table:PATH.parquet"
            )
        return "image", self._only("image", images, "Image")

    def _of_type(self, kind: Any) -> list[str]:
        return [name for name, feature in self.split.features.items() if isinstance(feature, kind)]

    def _texts(self) -> list[str]:
        features = self.split.features.items()
        return [name for name, feature in features if getattr(feature, "dtype", None) in ("string", "large_string")]

    def _arrays(self) -> list[str]:
        features = self.split.features.items()
        return [
            n for n, feature in features if hasattr(feature, "feature") or type(feature).__name__.startswith("Array")
        ]

    def _only(self, role: str, columns: Sequence[str], kind: str) -> str:
        if len(columns) == 1:
            return columns[0]
        number = f"{len(columns)} columns" if columns else "no column"
        raise FedloomError(
            f"{self.where} has {number} of type {kind}; name the one to use, as in "
            f"{self.where}?{role}=COLUMN; the columns are {', '.join(columns or self.split.features)}"
        )


def _images(where: str, parts: list[Any], column: str) -> Iterator[tuple[str, Any]]:
    for part in parts:
        for place, row in enumerate(part.select_columns([column])):
            name = f"{where}, row {place} of {part.split or 'all'}"
            if not hasattr(row[column], "convert"):
                raise FedloomError(f"{name}: the column {column} holds no image")
            yield name, row[column]


def _tokens(
    where: str,
    parts: list[Any],
    column: str,
    label: str,
    y: Array,
    class_names: Array,
    tokenizing: TextOptions | None,
    schema: Schema | None,
    divided: bool,
) -> Content:
    values = [value for part in parts for value in part[column][:]]
    if strange := [value for value in values if not isinstance(value, str | None)]:
        raise FedloomError(f"{where}: the column {column} holds {type(strange[0]).__name__}, not texts")
    texts = [value or "" for value in values]
    if schema is None:
        training = texts[: len(parts[0])] if divided else [t for row, t in enumerate(texts) if row % HOLD_OUT]
        names = [str(name) for name in class_names] or ordered(str(value) for value in np.unique(y))
        schema = (tokenizing or TextOptions()).fit(column, label, names, training)
    if not isinstance(schema, TextSchema):
        raise FedloomError(f"{where}: the schema is for tables, and the column {column} holds texts")
    content, notes = tokens(texts, schema)
    empty = sum(not text.strip() for text in texts)
    notes += [f"without text: {empty} of {len(texts)} rows"] if empty else []
    return content | {"notes": np.array(notes, dtype=str), "schema": np.array(schema.model_dump_json())}


def _codes(where: str, library: Any, parts: list[Any], column: str) -> tuple[Array, Array]:
    """The column as integers, and their names: those of the feature, or the distinct texts in sorted order."""
    feature = parts[0].features[column]
    values = np.array([value for part in parts for value in part[column][:]])
    if values.dtype.kind == "O" or (isinstance(feature, library.ClassLabel) and values.min(initial=0) < 0):
        raise FedloomError(f"{where}: the column {column} has rows without a value; remove them")
    if isinstance(feature, library.ClassLabel):
        return values, np.array(feature.names)
    if values.dtype.kind == "U":
        names, codes = np.unique(values, return_inverse=True)
        return codes, names
    return values, np.empty(0, "U1")
