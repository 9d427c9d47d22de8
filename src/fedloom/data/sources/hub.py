"""Datasets of the Hugging Face hub, or saved with save_to_disk, through the datasets library (the extra hub).

Image, text and label columns are found by their feature types, or named: hf:owner/name?image=img&label=fine_label. Texts
become tokens (tokenizer=, length=, vocabulary=, schema=). Other options are config, revision, domain, client and writer. The
test split is test, else validation or valid, else every fifth sample (`data.test_every`); test=NAME names another. A hub
dataset is cached under its name and options: set a revision to pin its content.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedloom.data.arrays import Content
from fedloom.data.hub_content import ROLES, Unreachable, datasets_library, hub_content, hub_splits
from fedloom.data.schema import Schema, parse_schema, read_schema
from fedloom.data.sources.options import read_options
from fedloom.data.sources.source import DataSource, data_format, stamp
from fedloom.data.text.tokenize import OPTIONS as TEXT_OPTIONS
from fedloom.data.text.tokenize import TextOptions
from fedloom.errors import FedloomError, shown
from fedloom.paths import resolved

OPTIONS = (*ROLES, "config", "revision", "test", *TEXT_OPTIONS, "schema")


@data_format("hf:owner/name", "a dataset of the Hugging Face hub, or hf:PATH; needs the extra hub")
def open_hub(text: str) -> DataSource:
    name, options = read_options("hf:", text, OPTIONS)
    if not name:
        raise FedloomError(f"data 'hf:{text}' names no dataset; expected hf:owner/name or hf:PATH")
    tokenizing = TextOptions.of(f"data {shown(f'hf:{text}')}", options)
    files = tokenizing.files
    schema = None
    if "schema" in options:
        place = resolved(options["schema"], "schema")
        schema = read_schema(place)
        files.append(place)
    settings = ("hf", *(f"{option}={value}" for option, value in sorted(options.items())), *stamp(files))
    path = Path(name).expanduser()
    if not path.is_dir():
        if name.startswith(("/", ".", "~")):
            raise FedloomError(f"data 'hf:{text}': the folder {path} does not exist")
        return _Reader(name, None, options, tokenizing, schema).source(name, (*settings, name))
    path = path.resolve()
    identity = (*settings, *stamp(sorted(file for file in path.rglob("*") if file.is_file())))
    return _Reader(str(path), path, options, tokenizing, schema).source(path.name, identity)


@dataclass(frozen=True)
class _Reader:
    name: str
    path: Path | None
    options: dict[str, str]
    tokenizing: TextOptions
    schema: Schema | None

    def source(self, name: str, identity: tuple[str, ...]) -> DataSource:
        def prepared(schema: str) -> DataSource:
            return replace(self, schema=parse_schema(schema)).source(name, (*identity, schema))

        return DataSource(name, f"hf:{self.name}", identity, self.read, prepared=prepared)

    def read(self, resize: int | None) -> Content:
        train, test = self._splits(datasets_library())
        return hub_content(f"hf:{self.name}", train, test, self.options, self.tokenizing, self.schema, resize)

    def _splits(self, library: Any) -> tuple[Any, Any]:
        try:
            if self.path and any((self.path / file).exists() for file in ("dataset_dict.json", "state.json")):
                loaded = library.load_from_disk(str(self.path))
            else:
                config, revision = self.options.get("config"), self.options.get("revision")
                loaded = library.load_dataset(self.name, config, revision=revision)
        except Exception as error:  # the library and its HTTP client raise many types
            raise Unreachable(f"hf:{self.name} cannot be loaded: {error}") from error
        return hub_splits(f"hf:{self.name}", loaded, self.options.get("test"))
