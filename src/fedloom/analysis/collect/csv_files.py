"""Small tables in a run folder: CSV with a header row, and .npz archives. Files are replaced atomically."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.io.files import write


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A missing column or a number that is not finite becomes an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in columns])
    write(path, text.getvalue())


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Rows with numbers converted, and None for empty cells."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: _value(cell) for key, cell in row.items()} for row in csv.DictReader(file)]


def write_npz(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    archive = io.BytesIO()
    np.savez_compressed(archive, allow_pickle=False, **arrays)
    write(path, archive.getvalue())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return f"{float(value):.6g}" if math.isfinite(value) else ""
    return str(value)


def _value(cell: str) -> Any:
    if cell == "":
        return None
    try:
        return int(cell)
    except ValueError:
        pass
    try:
        return float(cell)
    except ValueError:
        return cell
