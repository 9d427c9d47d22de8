"""The shared library of compiled kernels: built once, cached by what it is made of, loaded when a net first needs it.

    $FEDLOOM_CACHE/native/KEY-CHECKSUM.so

KEY is a digest of the sources, the options, the compiler's version and the processor's kind; CHECKSUM is one of the file
itself. A file that does not match its checksum is built again, and so is one that cannot be loaded. Files are renamed
into place when complete. Processes that need a missing library at the same time wait for the first to build it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.io.files import write
from fedloom.io.locks import lock
from fedloom.nets.kernels.native.compiler import Compiler, Unavailable, find_compiler, unsuited, vectors

HERE = Path(__file__).parent
TYPES = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "f": ctypes.c_double}
Numbers = ctypes.Array[ctypes.c_int64]  # many sizes, in one argument
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}

_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None
_reason: str | None = None  # why there is none, once that is known


def native_reason() -> str | None:
    """Builds and loads the library, at first use; None if it is ready, else why it is not."""
    global _loaded, _reason
    with _lock:
        if _loaded is None and _reason is None:
            _reason = unsuited()
        if _loaded is None and _reason is None:
            try:
                _loaded = load()
            except Unavailable as error:
                _reason = str(error)
    return _reason


def run(name: str, signature: str, tensors: Sequence[Tensor | None], *rest: float | Numbers) -> None:
    """Call a kernel for tensors of the first one's type, or none, and further arguments.

    The tensors are held until it returns: a temporary one may be passed.
    """
    assert tensors[0] is not None
    function = kernel(name, signature, tensors[0].dtype)
    function(*[None if tensor is None else tensor.data_ptr() for tensor in tensors], *rest)


@cache
def kernel(name: str, signature: str, dtype: torch.dtype) -> Callable[..., None]:
    """A function of the library for numbers of this type. `signature`: a letter per argument, p a pointer, n an integer,
    f a floating-point number (always passed as double)."""
    assert native_reason() is None and _loaded is not None
    # an item is a function of its own; an attribute would be shared by all signatures
    function: Any = _loaded[f"fedloom_{name}_{SUFFIX[dtype]}"]
    function.argtypes = [TYPES[letter] for letter in signature]
    function.restype = None
    return function  # type: ignore[no-any-return]


def folder() -> Path:
    return Path(os.environ.get("FEDLOOM_CACHE") or "~/.cache/fedloom").expanduser() / "native"


def load(sources: Path = HERE) -> ctypes.CDLL:
    """The library of these sources, from the cache or built now."""
    compiler = find_compiler()
    key = _key(compiler, sources)
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with _held(folder() / f"{key}.lock"):
            library = _stored(key)
            return library if library is not None else _built(compiler, key, sources)
    except OSError as error:
        raise Unavailable(
            f"the cache folder {folder()} cannot be used ({error.strerror or error}); set FEDLOOM_CACHE to another one"
        ) from error


def _key(compiler: Compiler, sources: Path) -> str:
    content = hashlib.blake2b(digest_size=10)
    for path in sorted(sources.glob("*.cpp")) + sorted(sources.glob("*.h")):
        content.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    content.update(repr((compiler, platform.system(), platform.machine(), vectors())).encode())
    return content.hexdigest()


def _stored(key: str) -> ctypes.CDLL | None:
    for path in sorted(folder().glob(f"{key}-*.so")):
        if path.name == f"{key}-{_checksum(path.read_bytes())}.so":  # a cut file would crash the process that maps it
            with contextlib.suppress(OSError):
                return ctypes.CDLL(str(path))
        path.unlink(missing_ok=True)
    return None


def _built(compiler: Compiler, key: str, sources: Path) -> ctypes.CDLL:
    if sys.stderr is not None and sys.stderr.isatty():
        print("compiling kernels, once on this machine: some seconds …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder(), prefix=f".{key}.") as place:
        compiler(sorted(sources.glob("*.cpp")), Path(place) / "native.so")
        content = (Path(place) / "native.so").read_bytes()
    path = folder() / f"{key}-{_checksum(content)}.so"
    write(path, content, mode=0o755)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"the compiled library cannot be loaded ({error})") from error


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=10).hexdigest()


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """One process at a time; without locks several may build the same file, and the last rename stays."""
    with path.open("a") as file:
        lock(file.fileno(), wait=True)
        yield
