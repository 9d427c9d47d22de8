"""How a worker's C library handles memory: what a step frees, the next step uses again, in huge pages where there are some.

Otherwise every step returns pages to the system and faults in new ones, and maps of many megabytes are spread over
thousands of pages, whose addresses are looked up again and again.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # from malloc.h
MADV_HUGEPAGE = 14  # from mman.h
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HEAP, PIECE = 1 << 30, 1 << 20  # bytes: addresses that are reserved, of which memory is only what is used
LARGEST = 32 << 20  # bytes, the most that glibc allows: larger pieces come from the system, and return to it


def keep_freed_memory() -> None:
    """For glibc; other C libraries are left as they are."""
    if sys.platform == "win32":
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return
    library.mallopt(M_MMAP_THRESHOLD, LARGEST)
    library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    if _can_ask_for_huge_pages():
        _ask_for_huge_pages(library)


def _can_ask_for_huge_pages() -> bool:
    """Whether this system gives huge pages to those who ask: not to all, nor to none."""
    with suppress(OSError):
        return "[madvise]" in HUGE_PAGES.read_text()
    return False


def _ask_for_huge_pages(library: Any) -> None:
    """Let the heap grow once, by more than most nets need, and have huge pages there."""
    library.sbrk.restype, library.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    begin = library.sbrk(0)
    pieces: list[int | None] = []
    library.mallopt(M_TOP_PAD, HEAP)
    while library.sbrk(0) == begin and len(pieces) < HEAP // PIECE:
        pieces.append(library.malloc(PIECE))
    library.mallopt(M_TOP_PAD, 128 << 10)  # as by default
    for piece in pieces:
        library.free(piece)
    first, end = -(-begin // PAGESIZE) * PAGESIZE, library.sbrk(0) // PAGESIZE * PAGESIZE
    if end > first:
        library.madvise(first, end - first, MADV_HUGEPAGE)  # a refusal changes nothing
