"""Columns become features: numbers imputed and standardized, categories one-hot. Fitted on training rows only.

The statistics are those of scikit-learn's SimpleImputer (median), StandardScaler and OneHotEncoder, kept in a schema that
can be stored, sent and applied to other rows. A missing number becomes the median; where training rows lack some, a further
input says so. A missing category is a category of its own where training rows lack some. A category that no training row
has becomes zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from fedloom.data.schema import CategoricalColumn, NumericColumn, TableSchema
from fedloom.data.tables.values import check_not_identifier, column_kind, numbers_of, texts_of
from fedloom.errors import FedloomError, brief, shown
from fedloom.io.archives import Array

Column = NumericColumn | CategoricalColumn


def fit_columns(
    where: str, frame: Any, train: Array, names: Sequence[str], keep: Sequence[str]
) -> tuple[list[Column], list[str]]:
    """The columns of a schema, from these training rows, and notes on columns that are not used."""
    columns: list[Column] = []
    empty = []
    for name in names:
        series = frame[name]
        kind = column_kind(where, series)
        if name not in keep:
            check_not_identifier(where, series, kind)
        if not series[train].notna().any():
            empty.append(name)
        elif kind == "numeric":
            columns.append(_fit_numbers(name, numbers_of(where, series)[train]))
        else:
            texts, missing = texts_of(series)
            columns.append(_fit_categories(name, texts[train], missing[train]))
    if not columns:
        raise FedloomError(
            f"{where}: no column is left to learn from; the columns are {brief(', '.join(frame.columns))}"
        )
    return columns, [f"not used, since no training row has a value: {', '.join(empty)}"] if empty else []


def features(where: str, frame: Any, train: Array, schema: TableSchema) -> tuple[Array, list[str]]:
    """Inputs float32 N,D, and notes on missing values and unknown categories."""
    if absent := [column.name for column in schema.columns if column.name not in frame.columns]:
        raise FedloomError(
            f"{where}: the column {shown(absent[0])} of the schema is missing; the columns are "
            f"{brief(', '.join(map(str, frame.columns)))}"
        )
    x = np.zeros((len(frame), len(schema.input_names)), np.float32)
    filled, own, ignored, unknown = [list[str]() for _ in range(4)]
    place = 0
    for column in schema.columns:
        series = frame[column.name]
        block = x[:, place : place + len(column.inputs)]
        place += len(column.inputs)
        if isinstance(column, NumericColumn):
            values = numbers_of(where, series)
            missing = np.isnan(values)
            block[:, 0] = (np.where(missing, column.median, values) - column.mean) / column.deviation
            if column.indicator:
                block[:, 1] = missing
            if missing.any():
                filled.append(f"{column.name} {_counts(missing, train)} ({column.median:.4g})")
            continue
        texts, missing = texts_of(series)
        place_of = {category: number for number, category in enumerate(column.categories)}
        distinct, inverse = np.unique(texts, return_inverse=True)
        places = np.array([place_of.get(str(text), -1) for text in distinct])[inverse]
        listed = ~missing & (places >= 0)
        block[listed, places[listed]] = 1
        if column.missing:
            block[:, -1] = missing
        if missing.any():
            (own if column.missing else ignored).append(f"{column.name} {_counts(missing, train)}")
        if (strange := ~missing & ~listed).any():
            examples = ", ".join(sorted({brief(str(text), 30) for text in texts[strange]})[:3])
            unknown.append(f"{column.name} {_counts(strange, train)}, such as {examples}")
    return x, [
        f"{what}: {'; '.join(columns)}"
        for what, columns in (
            ("missing numbers, filled with the training median", filled),
            ("missing categories, encoded as a category of their own", own),
            ("missing categories that no training row has, encoded as zeros", ignored),
            ("categories that no training row has, encoded as zeros", unknown),
        )
        if columns
    ]


def _fit_numbers(name: str, values: Array) -> NumericColumn:
    imputer = import_module("sklearn.impute").SimpleImputer(strategy="median")
    scaler = import_module("sklearn.preprocessing").StandardScaler()
    scaler.fit(imputer.fit_transform(values[:, None]))
    return NumericColumn(
        name=name,
        median=float(imputer.statistics_[0]),
        mean=float(scaler.mean_[0]),
        deviation=float(scaler.scale_[0]),
        indicator=bool(np.isnan(values).any()),
    )


def _fit_categories(name: str, texts: Array, missing: Array) -> CategoricalColumn:
    encoder = import_module("sklearn.preprocessing").OneHotEncoder(handle_unknown="ignore")
    encoder.fit(texts[~missing][:, None])
    return CategoricalColumn(name=name, categories=tuple(map(str, encoder.categories_[0])), missing=bool(missing.any()))


def _counts(marked: Array, train: Array) -> str:
    """How many training and test rows are marked."""
    return f"in {int(marked[train].sum())} training and {int(marked[~train].sum())} test rows"
