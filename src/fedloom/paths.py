"""Paths that people name: what keeps one from being read, found without opening it, so that no pipe is waited for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedloom.errors import FedloomError, brief


def obstacle(path: str | Path) -> str | None:
    """Why this is no file that can be read; None if it is one."""
    try:
        mode = Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "No such file or directory"
    except OSError as error:
        return str(error.strerror)
    except ValueError:  # a NUL, or a sign that the file system cannot spell
        return "no file can be called that"
    if stat.S_ISDIR(mode):
        return "Is a directory"
    if not stat.S_ISREG(mode):
        return "it is a pipe, a socket or a device, not a file"
    return None if os.access(path, os.R_OK) else "Permission denied"


def expanded(path: str | Path, what: str) -> Path:
    """The path without `~`, or a sentence that begins with `what` it is for."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # nobody's home
        raise FedloomError(f"{what}: {brief(path)} is no path ({error})") from None


def resolved(path: str | Path, what: str) -> Path:
    """The same without links and dots."""
    try:
        return expanded(path, what).resolve()
    except FedloomError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FedloomError(f"{what}: {brief(path)} is no path ({reason})") from None
