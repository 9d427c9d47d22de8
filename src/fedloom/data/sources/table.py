"""Tables: csv or parquet files, read with pandas (the extra tables).

    table:PATH.csv?target=COLUMN[&client=COLUMN&test=COLUMN&domain=COLUMN&drop=COLUMN,COLUMN&keep=COLUMN,COLUMN]
    table:PATH.csv?target=COLUMN&text=COLUMN[&tokenizer=words&length=64&vocabulary=10000]

Other columns are inputs: `data/tables/features.py` says how. With `text`, that column alone is, as tokens. `schema=PATH.json`
applies a schema fitted elsewhere. Without `test`, every fifth row is for testing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fedloom.data.arrays import Content
from fedloom.data.schema import Schema, parse_schema, read_schema
from fedloom.data.sources.options import read_options
from fedloom.data.sources.source import DataSource, data_format, stamp
from fedloom.data.tables.content import Roles, table_content
from fedloom.data.tables.read import SUFFIXES, read_frame
from fedloom.data.text.tokenize import OPTIONS as TEXT_OPTIONS
from fedloom.data.text.tokenize import TextOptions
from fedloom.errors import FedloomError, shown
from fedloom.paths import resolved

ROLES = ("target", "client", "test", "domain", "text")
LISTS = ("drop", "keep")
ALLOWED = (*ROLES, *LISTS, "schema", *TEXT_OPTIONS)


@data_format(
    "table:PATH.csv?target=COLUMN",
    "a csv or parquet table; optional: client=, test=, domain=, text=COLUMN, drop=, keep=COLUMN,COLUMN, schema=PATH.json; "
    "needs the extra tables",
)
def open_table(text: str) -> DataSource:
    where = f"data {shown(f'table:{text}')}"
    name, options = read_options("table:", text, ALLOWED)
    path = resolved(name, "data")
    if path.suffix not in SUFFIXES or not path.is_file():
        problem = "does not exist" if path.suffix in SUFFIXES else "is neither a .csv nor a .parquet file"
        raise FedloomError(f"{where}: {str(path)!r} {problem}; expected table:PATH.csv?target=COLUMN")
    if strange := [option for option in TEXT_OPTIONS if option in options and "text" not in options]:
        raise FedloomError(f"{where}: {strange[0]} goes with text=COLUMN")
    if twice := [option for option in TEXT_OPTIONS if option in options and "schema" in options]:
        raise FedloomError(f"{where}: the schema says how texts are tokenized; leave out {twice[0]}")
    drop, keep = (tuple(filter(None, options.get(role, "").split(","))) for role in LISTS)
    target, client, test, domain, column = (options.get(role) for role in ROLES)
    roles = Roles(target, client, test, domain, column, drop, keep)
    tokenizing = TextOptions.of(where, options)
    files = [path, *tokenizing.files]
    schema = None
    if "schema" in options:
        place = resolved(options["schema"], "schema")
        schema = read_schema(place)
        files.append(place)
    settings = [f"{option}={value}" for option, value in sorted(options.items()) if option != "schema"]
    reader = _Reader(path, roles, tokenizing, schema)
    return reader.source(("table", *settings, *stamp(files)))


@dataclass(frozen=True)
class _Reader:
    path: Path
    roles: Roles
    tokenizing: TextOptions
    schema: Schema | None

    def source(self, identity: tuple[str, ...]) -> DataSource:
        def prepared(schema: str) -> DataSource:
            return replace(self, schema=parse_schema(schema)).source((*identity, schema))

        return DataSource(self.path.stem, str(self.path), identity, self.read, standardized=True, prepared=prepared)

    def read(self, _: int | None) -> Content:
        return table_content(str(self.path), read_frame(self.path), self.roles, self.tokenizing, self.schema)
