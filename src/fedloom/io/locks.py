"""Locks on open files and folders, which end with the process that holds them."""

from __future__ import annotations

try:
    import fcntl
except ImportError:  # Windows, where a folder cannot be opened, and a lock would keep others from reading
    fcntl = None  # type: ignore[assignment]

AVAILABLE = fcntl is not None


def lock(descriptor: int, wait: bool = False) -> bool:
    """Whether this process holds the lock now. Where a file system has no locks, it counts as held."""
    if not AVAILABLE:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
