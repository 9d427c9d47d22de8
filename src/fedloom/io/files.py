"""Atomic files: written under a temporary name, then renamed. Tensor files carry a checksum."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedloom.errors import FedloomError, brief
from fedloom.io.digest import digest
from fedloom.paths import obstacle


def write(path: Path, content: bytes | str, durable: bool = False, mode: int = 0o666) -> None:
    """Replace a file atomically. `durable`: sync to disk, so it survives a power cut. `mode`: before the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.chmod(temporary, mode & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None  # not the temporary name
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of a killed `write`. The caller must know that no process is writing there now."""
    for path in folder.glob(".*"):
        if re.fullmatch(r"\..+\.(yaml|jsonl?|safetensors|csv|npz)\.[a-z0-9_]{8}", path.name):
            path.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, content: Any) -> None:
    write(path, json.dumps(content, indent=2, allow_nan=False, default=str) + "\n")


def loads(text: str | bytes) -> Any:
    """Parse JSON with finite numbers of at most 64 bits and limited nesting; ValueError for anything else."""
    try:
        return json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole(text: str) -> int:
    if len(text) > 20:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not finite")
    return value


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if it cannot be read."""
    if obstacle(path):
        return None
    try:
        return loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def append_line(path: Path, content: Mapping[str, Any]) -> None:
    """Append one line of JSON in one system call, so that readers never see half a line; on OSError nothing is appended."""
    line = (json.dumps(content, allow_nan=False) + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        before = os.fstat(descriptor).st_size
        written = 0
        try:
            while written < len(line):  # a full disk accepts a part; only the next call raises
                written += os.write(descriptor, line[written:])
        except BaseException:
            os.ftruncate(descriptor, before)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON Lines file up to the first incomplete one, which a kill or a power cut may leave."""
    lines: list[dict[str, Any]] = []
    if not path.exists():
        return lines
    if reason := obstacle(path):
        raise FedloomError(f"{path} cannot be read: {reason}")
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            content = loads(line)
        except ValueError:
            break
        if not isinstance(content, dict):
            break
        lines.append(content)
    return lines


def replace_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Replace the lines of a file durably; does not write if they are the same."""
    content = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
    if not path.exists() or path.read_bytes() != content:
        write(path, content, durable=True)


def sync(path: Path) -> None:
    """Force appended lines to disk."""
    if path.exists():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    durable: bool = False,
    mode: int = 0o666,
) -> None:
    """Write a safetensors file with a checksum of tensors and metadata in its metadata."""
    texts = dict(metadata or {})
    texts["digest"] = _seal(tensors, texts)
    write(path, save({name: t.contiguous() for name, t in tensors.items()}, texts), durable, mode)


def read_tensors(path: Path, sealed: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata; raises an error for a damaged file. `sealed`: whether to check the checksum."""
    if reason := obstacle(path):
        raise FedloomError(f"there is no file {path}" if not path.exists() else f"{path} cannot be read: {reason}")
    try:
        with safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        # SafetensorError for what the library checks; others for dtypes that torch does not have
        raise FedloomError(f"{path} is damaged or not a safetensors file ({brief(str(error))})") from None
    seal = metadata.pop("digest", None)
    if sealed and seal != _seal(tensors, metadata):
        raise FedloomError(f"{path} is damaged: its checksum does not match its content")
    return tensors, metadata


def _seal(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    return digest(tensors) + ":" + json.dumps(dict(metadata), sort_keys=True)


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file, without reading its tensors; empty if it cannot be read."""
    try:
        with safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError):
        return {}
