"""A csv or parquet file as a pandas frame. Sizes are checked before anything is decompressed; nothing is unpickled."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError, brief
from fedloom.extras import install
from fedloom.paths import obstacle

SUFFIXES = (".csv", ".parquet")
SEPARATORS = (",", ";", "\t")


def pandas() -> Any:
    return _library("pandas")


def read_frame(path: Path) -> Any:
    """All rows of the file. The separator of a csv file is the one that its first line holds most often: , ; or a tab."""
    if reason := obstacle(path):
        raise FedloomError(f"{path} cannot be read ({reason}); expected a csv or parquet file")
    library = pandas()
    try:
        if path.suffix == ".parquet":
            _check_size(path, _stored_bytes(path))
            frame = library.read_parquet(path, engine="pyarrow")
        else:
            _check_size(path, path.stat().st_size)
            separator = _separator(path)
            frame = library.read_csv(path, sep=separator, low_memory=False, skipinitialspace=True, encoding="utf-8-sig")
    except FedloomError:
        raise
    except Exception as error:  # pandas and pyarrow raise many types for damaged files
        reason = brief(str(error) or type(error).__name__)
        raise FedloomError(f"{path} cannot be read as a table ({reason}); expected {path.suffix[1:]}") from None
    if not len(frame) or not len(frame.columns):
        raise FedloomError(f"{path} has no rows; expected a first line of column names and at least two rows")
    return frame


def _separator(path: Path) -> str:
    with path.open(encoding="utf-8-sig") as file:
        first = file.readline(1 << 20)
    return max(SEPARATORS, key=first.count)


def _stored_bytes(path: Path) -> int:
    metadata = _library("pyarrow.parquet").read_metadata(path)
    return sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))


def _check_size(path: Path, size: int) -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        raise FedloomError(f"{path} holds {size:,} bytes, more than the memory of this machine ({memory:,})")


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise FedloomError(f"tables need {name.partition('.')[0]}, which is missing: {install('tables')}") from error
