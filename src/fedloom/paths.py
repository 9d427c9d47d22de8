"""Paths that users name: checked without opening them, since opening a pipe may block."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedloom.errors import FedloomError, brief

RUNS = Path("runs")  # where runs go that name no folder
REPRODUCTIONS = RUNS / "reproduce"


def data_files() -> dict[str, Path]:
    """The npz files in $FEDLOOM_DATA by name; none if it is not set."""
    root = os.environ.get("FEDLOOM_DATA")
    paths = sorted(Path(root).expanduser().glob("*.npz")) if root else []
    return {path.stem: path for path in paths if path.is_file()}


def obstacle(path: str | Path) -> str | None:
    """Why this is not a readable file; None if it is one."""
    try:
        mode = Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "No such file or directory"
    except OSError as error:
        return str(error.strerror)
    except ValueError:  # a NUL byte, or a character that the file system cannot encode
        return "not a valid file name"
    if stat.S_ISDIR(mode):
        return "Is a directory"
    if not stat.S_ISREG(mode):
        return "it is a pipe, a socket or a device, not a file"
    return None if os.access(path, os.R_OK) else "Permission denied"


def expanded(path: str | Path, what: str) -> Path:
    """The path with `~` expanded. Error messages begin with `what`, the field that names the path."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # unknown user
        raise FedloomError(f"{what}: {brief(path)} is not a valid path ({error})") from None


def resolved(path: str | Path, what: str) -> Path:
    """The absolute path, with `~` expanded and symbolic links resolved."""
    try:
        return expanded(path, what).resolve()
    except FedloomError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of symbolic links
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FedloomError(f"{what}: {brief(path)} is not a valid path ({reason})") from None
