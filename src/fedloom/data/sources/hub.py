"""Datasets of the Hugging Face hub, or saved with save_to_disk, through the datasets library (fedloom[hub]).

The image and label columns are found by their feature types, or named: hf:owner/name?image=img&label=fine_label. Other
options are config, revision, domain and writer. The test split is test, else validation or valid, else every fifth image.
A hub dataset is cached under its name and options: set a revision to pin its content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from fedloom.data.arrays import Content
from fedloom.data.sources.decode import stack_images
from fedloom.data.sources.source import DataSource, data_format, stamp
from fedloom.errors import FedloomError
from fedloom.io.archives import Array

OPTIONS = ("image", "label", "config", "revision", "domain", "writer")


class Unreachable(FedloomError):
    """The dataset could not be downloaded or opened."""


@data_format("hf:owner/name", 'a dataset of the Hugging Face hub, or hf:PATH; needs pip install "fedloom[hub]"')
def open_hub(text: str) -> DataSource:
    name, _, query = text.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    for option, value in options.items():
        if option not in OPTIONS or not value:
            raise FedloomError(
                f"data 'hf:{text}': the option {option}={value} is not understood; allowed are {', '.join(OPTIONS)}"
            )
    if not name:
        raise FedloomError(f"data 'hf:{text}' names no dataset; expected hf:owner/name or hf:PATH")
    chosen = ("hf", *(f"{option}={value}" for option, value in sorted(options.items())))
    path = Path(name).expanduser()
    if not path.is_dir():
        if name.startswith(("/", ".", "~")):
            raise FedloomError(f"data 'hf:{text}': the folder {path} does not exist")
        return DataSource(name, f"hf:{name}", (*chosen, name), _Reader(name, None, options).read)
    path = path.resolve()
    identity = (*chosen, *stamp(sorted(file for file in path.rglob("*") if file.is_file())))
    return DataSource(path.name, f"hf:{path}", identity, _Reader(str(path), path, options).read)


@dataclass(frozen=True)
class _Reader:
    name: str
    path: Path | None
    options: dict[str, str]

    def read(self, resize: int | None) -> Content:
        library = _library()
        train, test = self._splits(library)
        parts = [train] if test is None else [train, test]
        image = self._column(train, "image", (library.Image,))
        label = self._column(train, "label", (library.ClassLabel,))
        y, class_names = _codes(library, parts, label)
        content = {
            "x": stack_images(self._images(parts, image), sum(len(part) for part in parts), resize),
            "y": y,
            "class_names": class_names,
        }
        for kind in ("domain", "writer"):
            if kind in self.options:
                content[kind], names = _codes(library, parts, self._column(train, kind, ()))
                content |= {"domain_names": names} if kind == "domain" else {}
        if test is not None:
            content["is_test"] = np.arange(len(content["x"])) >= len(train)
        return content

    def _splits(self, library: Any) -> tuple[Any, Any]:
        try:
            if self.path and any((self.path / file).exists() for file in ("dataset_dict.json", "state.json")):
                loaded = library.load_from_disk(str(self.path))
            else:
                config, revision = self.options.get("config"), self.options.get("revision")
                loaded = library.load_dataset(self.name, config, revision=revision)
        except Exception as error:  # the library and its HTTP client raise many types
            raise Unreachable(f"hf:{self.name} cannot be loaded: {error}") from error
        if isinstance(loaded, library.Dataset):
            return loaded, None
        if "train" not in loaded:
            raise FedloomError(f"hf:{self.name} has the splits {', '.join(loaded)}; expected one called train")
        return loaded["train"], next((loaded[name] for name in ("test", "validation", "valid") if name in loaded), None)

    def _column(self, split: Any, role: str, kinds: tuple[Any, ...]) -> str:
        columns: dict[str, Any] = {
            name: feature for name, feature in split.features.items() if isinstance(feature, kinds)
        }
        if role in self.options:
            if self.options[role] not in split.features:
                raise FedloomError(
                    f"hf:{self.name} has no column {self.options[role]!r}; its columns are {', '.join(split.features)}"
                )
            return self.options[role]
        if len(columns) == 1:
            return next(iter(columns))
        number = f"{len(columns)} columns" if columns else "no column"
        raise FedloomError(
            f"hf:{self.name} has {number} of type {kinds[0].__name__}; name the one to use, as in "
            f"hf:{self.name}?{role}=COLUMN; the columns are {', '.join(columns or split.features)}"
        )

    def _images(self, parts: list[Any], column: str) -> Iterator[tuple[str, Any]]:
        for part in parts:
            for place, row in enumerate(part.select_columns([column])):
                name = f"hf:{self.name}, row {place} of {part.split or 'all'}"
                if not hasattr(row[column], "convert"):
                    raise FedloomError(f"{name}: the column {column} holds no image")
                yield name, row[column]


def _codes(library: Any, parts: list[Any], column: str) -> tuple[Array, Array]:
    """The column as integers, and their names: those of the feature, or the distinct texts in sorted order."""
    feature = parts[0].features[column]
    values = np.array([value for part in parts for value in part[column][:]])
    if isinstance(feature, library.ClassLabel):
        return values, np.array(feature.names)
    if values.dtype.kind == "U":
        names, codes = np.unique(values, return_inverse=True)
        return codes, names
    return values, np.empty(0, "U1")


def _library() -> Any:
    try:
        return import_module("datasets")
    except ImportError as error:
        raise Unreachable(
            'data "hf:…" needs the datasets library, which is missing: pip install "fedloom[hub]"'
        ) from error
