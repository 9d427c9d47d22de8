"""A node's own files: in folders that nobody else enters, under a root that its operator chose.

The server names federations, and a name becomes a folder. So it is taken only in the one form that servers give it, the
folder must lie under the root, and no symbolic link below the root is followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedloom.engine import files
from fedloom.errors import FedloomError

FOLDER, FILE = 0o700, 0o600
FEDERATION = re.compile(r"[0-9a-f]{16}")


class Refusal(FedloomError):
    """A reason that may be told to the server: it says nothing of the site's data."""


def home(root: Path, federation: str, client: int) -> Path:
    """The folder of a client in a federation; it may not exist yet."""
    if not FEDERATION.fullmatch(federation):
        raise Refusal("was asked for a federation whose name is not 16 hexadecimal digits")
    return inside(root, federation, f"client-{client:06d}")


def inside(root: Path, *names: str) -> Path:
    """A folder under the root that no symbolic link leads to; it may not exist yet."""
    found = root
    for name in names:
        found = found / name
        if found.is_symlink():
            raise Refusal(f"has a symbolic link in its state folder, {name}, which it does not follow")
    if not found.resolve().is_relative_to(root.resolve()):
        raise Refusal("was asked for a folder outside of its state folder")
    return found


def make(folder: Path, root: Path) -> None:
    """Make a folder and those above it, up to the root; all but a root that was there are closed to others."""
    if not root.exists():
        root.mkdir(FOLDER, parents=True)
    for path in reversed([folder, *folder.parents]):
        if path != root and path.is_relative_to(root):
            path.mkdir(FOLDER, exist_ok=True)
            os.chmod(path, FOLDER)  # it may be older


def file(folder: Path, name: str) -> Path:
    """A file to read; not one that a symbolic link leads to."""
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
