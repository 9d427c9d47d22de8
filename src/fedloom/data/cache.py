"""Decoded datasets on disk, one folder each: every start after the first memory-maps the files.

A folder is written under a temporary name and renamed when it is complete, so it is never half-written. If two processes
build the same folder, the second to finish uses the folder of the first. meta.json records the shape, type and checksum of
each file; a folder that does not match is built again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from fedloom.data.arrays import Content
from fedloom.errors import FedloomError
from fedloom.io.archives import Array

FORMAT = 3  # increase it when the layout of a folder changes
META = "meta.json"
ABANDONED = 24 * 3600.0  # seconds; the process that wrote an older temporary folder is gone
Facts: TypeAlias = dict[str, Any]


def root() -> Path:
    return Path(os.environ.get("FEDLOOM_CACHE") or "~/.cache/fedloom").expanduser()


def folder_of(name: str, *identity: str) -> Path:
    """The cache folder of a dataset, under $FEDLOOM_CACHE or ~/.cache/fedloom."""
    key = hashlib.blake2b(json.dumps([FORMAT, *identity]).encode(), digest_size=10).hexdigest()
    return root() / f"{re.sub('[^A-Za-z0-9_-]+', '-', name)[:60]}-{key}"


def fetch(folder: Path, build: Callable[[], tuple[Content, Facts]]) -> tuple[Content, Facts]:
    """The arrays (mapped copy-on-write) and facts of a folder; calls `build` first if it is missing or damaged."""
    for _ in range(5):  # another process may be replacing the folder at the same time
        cached = stored(folder)
        if cached is not None:
            return cached
        arrays, facts = build()
        try:
            _write(folder, arrays, facts)
        except OSError as error:
            raise FedloomError(
                f"the cache folder {folder.parent} cannot be written ({error.strerror or error}); "
                "set FEDLOOM_CACHE to a writable folder with enough space"
            ) from error
    raise FedloomError(f"the cache folder {folder} loses what is written to it; set FEDLOOM_CACHE to another disk")


def stored(folder: Path) -> tuple[Content, Facts] | None:
    """What a folder holds; None if it is missing or damaged."""
    try:
        meta = json.loads((folder / META).read_bytes())
        arrays = {name: _map(folder / f"{name}.npy", expected) for name, expected in meta["arrays"].items()}
        facts: Facts = meta["facts"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return arrays, facts


def _map(path: Path, expected: list[Any]) -> Array:
    values = np.lib.format.open_memmap(path, mode="c")
    if _description(path.stem, values) != expected:
        raise ValueError(f"{path} is not the file that was written")
    return values


def _description(name: str, values: Array) -> list[Any]:
    """Shape, type and checksum; no checksum for images, which are too large to read at every start."""
    return [list(values.shape), values.dtype.str, None if name.endswith("_x") else zlib.crc32(values.data)]


def _write(folder: Path, arrays: Content, facts: Facts) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder.parent)
    draft = _temporary(folder)
    try:
        draft.mkdir()
        descriptions = {}
        for name, values in arrays.items():
            path = draft / f"{name}.npy"
            values = np.ascontiguousarray(values)
            with path.open("wb") as file:
                np.lib.format.write_array(file, values, allow_pickle=False)
                _sync(file)
            descriptions[name] = _description(name, values)
        with (draft / META).open("w") as meta:
            json.dump({"arrays": descriptions, "facts": facts}, meta)
            _sync(meta)
        _install(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _install(draft: Path, folder: Path) -> None:
    for _ in range(5):
        try:
            draft.rename(folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        if stored(folder) is not None:  # another process was first, with the same content
            return
        damaged = _temporary(folder)
        try:
            folder.rename(damaged)
        except FileNotFoundError:
            continue  # another process removed it
        _remove(damaged)


def _sync(file: IO[Any]) -> None:
    """Write to disk before the rename; otherwise a power cut could leave a folder of zeros that looks complete."""
    file.flush()
    os.fsync(file.fileno())


def _temporary(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")


def _remove_abandoned(root: Path) -> None:
    """Remove temporary folders of killed processes: only names that `_temporary` makes, as the root may be any folder."""
    for path in root.iterdir():
        if re.fullmatch(r"\.[A-Za-z0-9_-]+-[0-9a-f]{20}\.[0-9a-f]{32}", path.name):
            try:
                if time.time() - path.stat().st_mtime > ABANDONED:
                    _remove(path)
            except FileNotFoundError:
                continue


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
