"""The files of a node, in folders that other users cannot read, under a root that its operator chose.

The server chooses the name of a federation, and the name becomes a folder. So only 16 hexadecimal digits are accepted, the
folder must be inside the root, and symbolic links below the root are not followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedloom.errors import FedloomError
from fedloom.io import files

FOLDER, FILE = 0o700, 0o600
FEDERATION = re.compile(r"[0-9a-f]{16}")


class Refusal(FedloomError):
    """A reason that may be sent to the server: it says nothing about the site's data."""


def home(root: Path, federation: str, client: int) -> Path:
    """The folder of a client in a federation; it may not exist yet."""
    if not FEDERATION.fullmatch(federation):
        raise Refusal("was asked for a federation whose name is not 16 hexadecimal digits")
    return inside(root, federation, f"client-{client:06d}")


def inside(root: Path, *names: str) -> Path:
    """A folder below the root, reached without symbolic links; it may not exist yet."""
    folder = root
    for name in names:
        folder = folder / name
        if folder.is_symlink():
            raise Refusal(f"has a symbolic link in its state folder, {name}, which it does not follow")
    if not folder.resolve().is_relative_to(root.resolve()):
        raise Refusal("was asked for a folder outside of its state folder")
    return folder


def make(folder: Path, root: Path) -> None:
    """Create a folder and its parents up to the root, closed to other users. An existing root keeps its mode."""
    if not root.exists():
        root.mkdir(FOLDER, parents=True)
    for path in reversed([folder, *folder.parents]):
        if path != root and path.is_relative_to(root):
            path.mkdir(FOLDER, exist_ok=True)
            os.chmod(path, FOLDER)  # it may have existed with another mode


def file(folder: Path, name: str) -> Path:
    """A file to read; a symbolic link is refused."""
    path = folder / name
    if path.is_symlink():
        raise Refusal(f"has a symbolic link in its state folder, {name}, which it does not follow")
    return path


def write(path: Path, content: bytes | str, durable: bool = False) -> None:
    files.write(path, content, durable, mode=FILE)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None, durable: bool = False
) -> None:
    files.write_tensors(path, tensors, metadata, durable, mode=FILE)
