"""Objects that were passed to fl.run(data=...): stored in the cache under a digest of their content, and read from there."""

from __future__ import annotations

import re

import numpy as np

from fedloom.data import cache
from fedloom.data.arrays import Content
from fedloom.data.sources.source import DataSource, data_format
from fedloom.errors import FedloomError, shown

FORM = re.compile(r"([A-Za-z0-9_.-]{1,60})-([0-9a-f]{20})")


@data_format("memory:NAME-DIGEST", "an object passed to fl.run(data=...), found again in the cache by its content")
def open_memory(text: str) -> DataSource:
    match = FORM.fullmatch(text)
    if match is None:
        raise FedloomError(
            f"data {shown(f'memory:{text}')} is not understood; it is written by fl.run(data=...), as memory:NAME-DIGEST"
        )
    name, identity = match[1], ("memory", match[2])

    def read(resize: int | None) -> Content:
        stored = cache.stored(cache.folder_of(name, str(None), *identity))
        if stored is None or resize is None:  # without resize, what is stored is used as it is
            raise FedloomError(
                f"data memory:{text}: the cache no longer holds this object ({cache.root()}); pass it again, as in "
                "fl.run(data=...) or fl.run(resume=FOLDER, data=...)"
            )
        arrays, facts = stored
        named = {key: np.array(facts[key], dtype=str) for key in ("class_names", "domain_names", "client_names")}
        return {**arrays, **{key: names for key, names in named.items() if len(names)}}

    return DataSource(name, f"memory:{text}", identity, read)
