"""Data sources: what the text of `data` in a recipe may be. One source per file in this folder; each registers itself.

A source is a form of the text (PREFIX:REST or PATH.ENDING), or a dataset with a plain name:

    @data_format("folder:PATH", "images in PATH/train/CLASS/ and PATH/test/CLASS/")
    def open_folder(path: str) -> DataSource: ...

    @data_name("digits", "1797 handwritten digits, 8 x 8")
    def open_digits() -> DataSource: ...

Opening a source must be cheap. Its content is read only when it is not in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedloom.data.arrays import Content
from fedloom.errors import FedloomError
from fedloom.io.user_code import same_origin


@dataclass(frozen=True)
class DataSource:
    name: str
    where: str  # how error messages about its content name it
    identity: tuple[str, ...]  # cheap to compute, and changes with the content
    read: Callable[[int | None], Content]  # takes `data.resize`, for readers that decode image files
    scale: float = 255.0  # largest pixel value of uint8 images
    standardized: bool = False  # features need no further normalization
    prepared: Callable[[str], DataSource] | None = None  # the same rows, prepared by a schema (its JSON text)


@dataclass(frozen=True)
class DataFormat:
    """A form of the text of `data`."""

    form: str  # PREFIX:REST or PATH.ENDING, as help texts print it
    summary: str
    open: Callable[[str], DataSource]  # takes REST, or the whole path

    def argument(self, text: str) -> str | None:
        """What `open` takes; None if the text does not have this form."""
        prefix, colon, _ = self.form.partition(":")
        if colon:
            return text.removeprefix(prefix + ":") if text.startswith(prefix + ":") else None
        return text if text.endswith(Path(self.form).suffix) else None


@dataclass(frozen=True)
class DataName:
    """A dataset with a plain name."""

    name: str
    summary: str
    open: Callable[[], DataSource]
    origin: str = ""  # where it is downloaded from
    bundled: bool = False  # takes precedence over $FEDLOOM_DATA/NAME.npz; others do not


FORMATS: dict[str, DataFormat] = {}
NAMES: dict[str, DataName] = {}
T = TypeVar("T", DataFormat, DataName)


def data_format(form: str, summary: str) -> Callable[[Callable[[str], DataSource]], Callable[[str], DataSource]]:
    def register(open: Callable[[str], DataSource]) -> Callable[[str], DataSource]:
        prefix, colon, _ = form.partition(":")
        _add(FORMATS, prefix + colon if colon else Path(form).suffix, DataFormat(form, summary, open))
        return open

    return register


def data_name(
    name: str, summary: str, origin: str = "", bundled: bool = False
) -> Callable[[Callable[[], DataSource]], Callable[[], DataSource]]:
    def register(open: Callable[[], DataSource]) -> Callable[[], DataSource]:
        _add(NAMES, name, DataName(name, summary, open, origin, bundled))
        return open

    return register


def _add(registry: dict[str, T], key: str, entry: T) -> None:
    known = registry.get(key)
    if known is not None and not same_origin(known.open, entry.open):
        raise FedloomError(f"two data sources are called {key!r}: {known.open.__module__} has it already")
    registry[key] = entry


def stamp(paths: Iterable[Path]) -> tuple[str, ...]:
    """Path, size and modification time of each file."""
    stamps = []
    for path in paths:
        state = path.stat()
        stamps.append(f"{path} {state.st_size} {state.st_mtime_ns}")
    return tuple(stamps)
