"""Decoded image sets on disk, one folder each, so that every start after the first only maps files into memory.

A folder is written under another name and renamed when it is complete, so it is there whole or not at all, and of
two processes that build the same one the second to finish uses the first one's. meta.json says what each file must
look like; a folder that differs is built again.
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

from fedloom.data.arrays import Array, Content
from fedloom.errors import FedloomError

FORMAT = 2  # goes up when the same file would be kept otherwise
META = "meta.json"
ABANDONED = 24 * 3600.0  # seconds after which a half-written folder belongs to a process that is gone
Facts: TypeAlias = dict[str, Any]


def folder_of(name: str, *identity: str) -> Path:
    """Where the set with this name and identity is kept: under $FEDLOOM_CACHE or ~/.cache/fedloom."""
    root = Path(os.environ.get("FEDLOOM_CACHE") or "~/.cache/fedloom").expanduser()
    key = hashlib.blake2b(json.dumps([FORMAT, *identity]).encode(), digest_size=10).hexdigest()
    return root / f"{re.sub('[^A-Za-z0-9_-]+', '-', name)[:60]}-{key}"


def fetch(folder: Path, build: Callable[[], tuple[Content, Facts]]) -> tuple[Content, Facts]:
    """The arrays, mapped copy-on-write, and the facts kept in this folder, built first unless it is there and whole."""
    for _ in range(5):  # another process may be replacing the folder at the same time
        kept = _open(folder)
        if kept is not None:
            return kept
        arrays, facts = build()
        try:
            _write(folder, arrays, facts)
        except OSError as error:
            raise FedloomError(
                f"the cache folder {folder.parent} cannot be written ({error.strerror or error}); "
                "set FEDLOOM_CACHE to a folder with room that can be"
            ) from error
    raise FedloomError(
        f"the cache folder {folder} does not keep what is written to it; set FEDLOOM_CACHE to another disk"
    )


def _open(folder: Path) -> tuple[Content, Facts] | None:
    try:
        meta = json.loads((folder / META).read_bytes())
        arrays = {name: _map(folder / f"{name}.npy", seen) for name, seen in meta["arrays"].items()}
        facts: Facts = meta["facts"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return arrays, facts


def _map(path: Path, seen: list[Any]) -> Array:
    values = np.lib.format.open_memmap(path, mode="c")
    if _description(path.stem, values) != seen:
        raise ValueError(f"{path} is not the file that was written")
    return values


def _description(name: str, values: Array) -> list[Any]:
    """Shape and type, and a checksum of all but the images, which are too large to read at every start."""
    return [list(values.shape), values.dtype.str, None if name.endswith("_x") else zlib.crc32(values.data)]


def _write(folder: Path, arrays: Content, facts: Facts) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent)
    draft = _aside(folder)
    try:
        draft.mkdir()
        seen = {}
        for name, values in arrays.items():
            path = draft / f"{name}.npy"
            values = np.ascontiguousarray(values)
            with path.open("wb") as file:
                np.lib.format.write_array(file, values, allow_pickle=False)
                _settle(file)
            seen[name] = _description(name, values)
        with (draft / META).open("w") as meta:
            json.dump({"arrays": seen, "facts": facts}, meta)
            _settle(meta)
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
        if _open(folder) is not None:  # another process was first, with the same content
            return
        damaged = _aside(folder)
        try:
            folder.rename(damaged)
        except FileNotFoundError:
            continue  # another process took it away
        _remove(damaged)


def _settle(file: IO[Any]) -> None:
    """On the disk before the rename is: otherwise a power cut could leave a whole-looking folder of zeros."""
    file.flush()
    os.fsync(file.fileno())


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")


def _sweep(root: Path) -> None:
    """Remove what killed processes left half-written: only names that _aside makes, as the root may be any folder."""
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
