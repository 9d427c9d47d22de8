"""A frame becomes the content of a data set: its columns have roles (target, client, test, domain, text); the rest is learned
from.

Rows without a target are left out, with a note. Rows without a client, domain or test flag are refused, since no value could
be guessed for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedloom.data.arrays import HOLD_OUT, Content, ordered
from fedloom.data.schema import Schema, TableSchema, TextSchema
from fedloom.data.tables.features import features, fit_columns
from fedloom.data.tables.values import column_kind, texts_of
from fedloom.data.text.tokenize import TextOptions, tokens
from fedloom.errors import FedloomError, brief, shown
from fedloom.io.archives import Array

TRAIN = ("0", "false", "train", "training", "no")
TEST = ("1", "true", "test", "testing", "yes")


@dataclass(frozen=True)
class Roles:
    """The columns of a table by what they are for."""

    target: str | None = None  # None: as in the schema
    client: str | None = None
    test: str | None = None
    domain: str | None = None
    text: str | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()  # used although they look like identifiers

    def named(self) -> Iterator[tuple[str, str]]:
        for role in ("target", "client", "test", "domain", "text"):
            if (column := getattr(self, role)) is not None:
                yield role, column
        yield from (("drop", column) for column in self.drop)
        yield from (("keep", column) for column in self.keep)


def table_content(
    where: str, frame: Any, roles: Roles, options: TextOptions | None = None, schema: Schema | None = None
) -> Content:
    """Inputs, labels and groups. Without a schema, one is fitted on the training rows; it is stored with the content."""
    frame = frame.rename(columns=str)
    target = roles.target or (schema.target if schema else None)
    if target is None:
        raise FedloomError(f"{where}: no column is named as target; write target=COLUMN, one of {_columns(frame)}")
    for role, column in [*roles.named(), ("target", target)]:
        if column not in frame.columns:
            raise FedloomError(f"{where}: {role}={column}: there is no such column; the columns are {_columns(frame)}")
    if list(frame.columns).count(target) > 1:
        raise FedloomError(f"{where}: the column {shown(target)} occurs twice; rename one of them")
    labels, unlabeled = _labels(where, frame[target])
    notes = []
    if unlabeled.any():
        notes.append(f"left out, since {target} is empty: {int(unlabeled.sum())} of {len(frame)} rows")
        frame, labels = frame[~unlabeled].reset_index(drop=True), labels[~unlabeled]
    content: Content = {"y": labels}
    train = np.arange(len(frame)) % HOLD_OUT != 0
    if roles.test:
        flags = _flags(where, frame[roles.test])
        content["is_test"], train = flags, ~flags
    if not train.any() or train.all():
        raise FedloomError(f"{where}: {len(frame)} rows are not enough for training and testing")
    for role in ("client", "domain"):
        if column := getattr(roles, role):
            content[role] = _groups(where, role, frame[column])
    classes = list(schema.classes) if schema else ordered(map(str, np.unique(labels)))
    if len(classes) < 2:
        raise FedloomError(
            f"{where}: the target {shown(target)} has one value only, {shown(classes[0])}; expected classes"
        )
    others = [name for name in frame.columns if name not in {column for _, column in roles.named()} | {target}]
    text = roles.text or (schema.text if isinstance(schema, TextSchema) else None)
    if text is not None:
        schema, inputs, more = _text_inputs(where, frame, train, text, target, classes, options, schema)
        more += [f"not used beside text={text}: {brief(', '.join(others), 200)}"] if others else []
    else:
        names = [name for name in frame.columns if name in {*others, *roles.keep}]
        schema, inputs, more = _feature_inputs(where, frame, train, names, roles.keep, target, classes, schema)
    return (
        content
        | inputs
        | {
            "class_names": np.array(classes),
            "notes": np.array([*notes, *more], dtype=str),
            "schema": np.array(schema.model_dump_json()),
        }
    )


def _feature_inputs(
    where: str,
    frame: Any,
    train: Array,
    names: Sequence[str],
    keep: Sequence[str],
    target: str,
    classes: Sequence[str],
    schema: Schema | None,
) -> tuple[TableSchema, Content, list[str]]:
    notes: list[str] = []
    if schema is None:
        columns, notes = fit_columns(where, frame, train, names, keep)
        schema = TableSchema(target=target, classes=tuple(classes), rows=int(train.sum()), columns=tuple(columns))
    elif not isinstance(schema, TableSchema):
        raise FedloomError(f"{where}: the schema is for texts")
    elif unused := [name for name in names if name not in {column.name for column in schema.columns}]:
        notes.append(f"not used, since the schema does not name them: {brief(', '.join(unused), 200)}")
    x, more = features(where, frame, train, schema)
    numeric = sum(column.kind == "numeric" for column in schema.columns)
    about = f"{x.shape[1]} inputs from {numeric} numeric and {len(schema.columns) - numeric} categorical columns"
    return schema, {"x": x, "kind": np.array("features")}, [about, *notes, *more]


def _text_inputs(
    where: str,
    frame: Any,
    train: Array,
    column: str,
    target: str,
    classes: Sequence[str],
    options: TextOptions | None,
    schema: Schema | None,
) -> tuple[TextSchema, Content, list[str]]:
    if column not in frame.columns:
        raise FedloomError(
            f"{where}: the column {shown(column)} of the schema is missing; the columns are {_columns(frame)}"
        )
    if schema is not None and not isinstance(schema, TextSchema):
        raise FedloomError(f"{where}: the schema is for columns of numbers and categories; leave out text={column}")
    texts, missing = texts_of(frame[column])
    if schema is None:
        training = [str(text) for text in texts[train]]
        schema = (options or TextOptions()).fit(column, target, classes, training)
    content, notes = tokens([str(text) for text in texts], schema)
    if missing.any():
        notes.append(f"without text: {int(missing.sum())} of {len(texts)} rows")
    return schema, content, notes


def _labels(where: str, series: Any) -> tuple[Array, Array]:
    texts, missing = texts_of(series)
    if missing.all():
        raise FedloomError(f"{where}: the target {shown(str(series.name))} has no values")
    if column_kind(where, series) == "numeric":
        values = series[~missing].astype(float).to_numpy()
        if not np.equal(np.mod(values, 1), 0).all():
            fraction = values[np.mod(values, 1) != 0][0]
            raise FedloomError(
                f"{where}: the target {shown(str(series.name))} holds {fraction:g}; expected classes: texts, whole numbers "
                "or booleans"
            )
    return texts, missing


def _groups(where: str, role: str, series: Any) -> Array:
    texts, missing = texts_of(series)
    if missing.any():
        raise FedloomError(
            f"{where}: {role}={series.name} is empty in {int(missing.sum())} rows, row {int(missing.argmax())} first; "
            "fill it in or remove these rows"
        )
    return texts


def _flags(where: str, series: Any) -> Array:
    texts, missing = texts_of(series)
    words = np.char.lower(texts)
    strange = missing | ~np.isin(words, (*TRAIN, *TEST))
    if strange.any():
        value = "nothing" if missing[strange][0] else shown(str(texts[strange][0]))
        raise FedloomError(
            f"{where}: test={series.name} holds {value} in row {int(strange.argmax())}; expected train or test, 0 or 1, "
            "false or true"
        )
    return np.isin(words, TEST)


def _columns(frame: Any) -> str:
    return brief(", ".join(map(str, frame.columns)), 300)
