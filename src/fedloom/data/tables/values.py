"""The values of a column: as numbers, as texts, and which of the two they are."""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np

from fedloom.errors import FedloomError, shown
from fedloom.io.archives import Array

ColumnKind = Literal["numeric", "categorical"]
FEW = 20  # a text column with fewer distinct values is never taken for an identifier
DISTINCT = 0.9  # share of distinct values above which texts are taken for identifiers or free text
MOST_CATEGORIES = 1000
IDENTIFIER = re.compile(r"(^|[_\s-])(id|ids|uuid|index|key|number|nr|no)$|[a-z](ID|Id)$", re.IGNORECASE)


def column_kind(where: str, series: Any) -> ColumnKind:
    """Numbers are numeric; texts, booleans and categories are categorical; all else is refused."""
    letter = series.dtype.kind
    if letter in "iuf":
        return "numeric"
    if letter == "b" or str(series.dtype) in ("category", "str", "string", "boolean"):
        return "categorical"
    if letter == "O":
        wrong = next((value for value in series.dropna() if not isinstance(value, str | bool | int | float)), None)
        if wrong is None:
            return "categorical"
        raise FedloomError(
            f"{where}: the column {shown(str(series.name))} holds a value of type {type(wrong).__name__}; "
            f"expected numbers, texts or booleans; leave it out with drop={series.name}"
        )
    if (
        str(series.dtype).lower().startswith(("int", "uint", "float", "double", "decimal"))
    ):  # pandas' own nullable types
        return "numeric"
    raise FedloomError(
        f"{where}: the column {shown(str(series.name))} is of type {series.dtype}; expected numbers, texts or booleans; "
        f"turn it into a number, or leave it out with drop={series.name}"
    )


def check_not_identifier(where: str, series: Any, kind: ColumnKind) -> None:
    """Refuse a column that names rows rather than describing them."""
    name, present = str(series.name), series.dropna()
    distinct = present.nunique()
    hint = f"leave it out with drop={name}"
    if kind == "categorical":
        if distinct > FEW and distinct > DISTINCT * len(present):
            raise FedloomError(
                f"{where}: the column {shown(name)} holds {distinct} different texts in {len(present)} rows, such as "
                f"{shown(str(present.iloc[0]), 40)}: an identifier, free text, or numbers with words among them; {hint}, "
                f"use text={name} if it holds sentences, or leave cells without a number empty"
            )
        if distinct > MOST_CATEGORIES:
            raise FedloomError(
                f"{where}: the column {shown(name)} has {distinct} categories, and at most {MOST_CATEGORIES} are "
                f"encoded; {hint}, or use text={name} if it holds sentences"
            )
    elif distinct > FEW and distinct == len(present) and present.dtype.kind in "iu":
        consecutive = int(present.max()) - int(present.min()) + 1 == distinct
        if consecutive or IDENTIFIER.search(name):
            raise FedloomError(
                f"{where}: the column {shown(name)} holds a different number in each of {len(present)} rows, so it names "
                f"rows rather than describing them; {hint}, or use it all the same with keep={name}"
            )


def texts_of(series: Any) -> tuple[Array, Array]:
    """Values as texts, whole numbers without a fraction, and which are missing or blank (their text is empty)."""
    codes, distinct = series.factorize(use_na_sentinel=True)  # missing values have the code -1, the last text
    texts = np.array([*(_text(value) for value in distinct), ""])[codes]
    return texts, texts == ""


def numbers_of(where: str, series: Any) -> Array:
    """Values as float64; NaN where they are missing."""
    if column_kind(where, series) != "numeric" and series.notna().any():
        example = next(iter(series.dropna()))
        raise FedloomError(
            f"{where}: the column {shown(str(series.name))} holds {shown(str(example), 40)}; the schema has numbers there"
        )
    values: Array = series.astype(object).where(series.notna(), np.nan).to_numpy(dtype=np.float64)
    if np.isinf(values).any():
        row = int(np.isinf(values).argmax())
        raise FedloomError(
            f"{where}: the column {shown(str(series.name))} holds an infinite value in row {row}; leave its cell empty"
        )
    return values


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, np.generic):
        return _text(value.item())
    return str(value).strip()
