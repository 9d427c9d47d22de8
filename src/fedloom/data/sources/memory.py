"""Objects that were passed to fl.run(data=...): stored in the cache under a digest of their content, and read from there."""

from __future__ import annotations

import re

import numpy as np

from fedloom.data import cache
from fedloom.data.arrays import Content
from fedloom.data.sources.source import DataSource, data_format
from fedloom.errors import FedloomError, shown

NAMES = ("class_names", "domain_names", "client_names")
FORM = re.compile(r"([A-Za-z0-9_.-]{1,60})-([0-9a-f]{20})")


@data_format("memory:NAME-DIGEST", "an object passed to fl.run(data=...), found again in the cache by its content")
def open_memory(text: str) -> DataSource:
    match = FORM.fullmatch(text)
    if match is None:
        raise FedloomError(
            f"data {shown(f'memory:{text}')} is not understood; it is written by fl.run(data=...), as memory:NAME-DIGEST"
        )
    name, identity = match[1], ("memory", match[2])
    stored = cache.stored(cache.folder_of(name, str(None), *identity))

    def read(_: int | None) -> Content:
        if stored is None:
            raise FedloomError(
                f"data memory:{text}: the cache no longer holds this object ({cache.root()}); pass it again, as in "
                "fl.run(data=...) or fl.run(resume=FOLDER, data=...)"
            )
        arrays, facts = stored
        spec = facts["inputs"]
        content = {**arrays, "kind": np.array(spec["kind"]), "notes": np.array(facts["notes"], dtype=str)}
        content |= {key: np.array(facts[key], dtype=str) for key in NAMES if facts[key]}
        if spec["kind"] == "tokens":
            content |= {key: np.array(spec[key]) for key in ("vocabulary", "padding")}
        return content | ({"schema": np.array(facts["schema"])} if facts.get("schema") else {})

    scale = float(stored[1]["inputs"]["scale"]) if stored else 255.0
    return DataSource(name, f"memory:{text}", identity, read, scale)
