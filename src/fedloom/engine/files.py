"""Files that are never half-written: made beside their place, then moved there. Tensors carry a checksum."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedloom.errors import FedloomError
from fedloom.weights import digest


def write(path: Path, content: bytes | str, durable: bool = False, mode: int = 0o666) -> None:
    """Replace a file by new content in one move. `durable`: also through a power cut. `mode`: before the umask."""
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
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def sweep(folder: Path) -> None:
    """Remove what a killed `write` left beside its place; for one who knows that nobody writes there now."""
    for path in folder.glob(".*"):
        if re.fullmatch(r"\..+\.(yaml|jsonl?|safetensors|csv|npz)\.[a-z0-9_]{8}", path.name):
            path.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, content: Any) -> None:
    write(path, json.dumps(content, indent=2, allow_nan=False, default=str) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file; None where there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def append_line(path: Path, content: Mapping[str, Any]) -> None:
    """One line of JSON in one system call, so that a reader never sees half of it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, (json.dumps(content, allow_nan=False) + "\n").encode())
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file up to the first that is not whole: a kill or a power cut ends it there."""
    found: list[dict[str, Any]] = []
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
        try:
            content = json.loads(line)
        except ValueError:
            break
        if not isinstance(content, dict):
            break
        found.append(content)
    return found


def keep_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    write(path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    durable: bool = False,
    mode: int = 0o666,
) -> None:
    """A safetensors file whose metadata hold a hash of everything else in it."""
    told = dict(metadata or {})
    told["digest"] = _seal(tensors, told)
    write(path, save({name: t.contiguous() for name, t in tensors.items()}, told), durable, mode)


def read_tensors(path: Path, sealed: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata; a damaged file is an error that says so."""
    try:
        with safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FedloomError(f"there is no file {path}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise FedloomError(f"{path} is damaged or not a safetensors file ({error})") from None
    seal = metadata.pop("digest", None)
    if sealed and seal != _seal(tensors, metadata):
        raise FedloomError(f"{path} is damaged: its checksum does not match its content")
    return tensors, metadata


def _seal(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    return digest(tensors) + ":" + json.dumps(dict(metadata), sort_keys=True)
