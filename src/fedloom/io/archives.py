"""npz files from untrusted sources: checked before anything is decompressed, and read without pickle.

A few kilobytes can claim to hold terabytes, be encrypted, use a compression method that takes hours, or state one size in
the archive and another in the array. All of this is detected from the archive's directory and the arrays' headers.
"""

from __future__ import annotations

import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.errors import FedloomError, brief
from fedloom.paths import obstacle

Array = npt.NDArray[Any]
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy writes
HEADER = 10_000  # maximum bytes of an array's header
MOST_COMPRESSION = 200  # images do not compress more than this
UNSUSPICIOUS = 2**28  # bytes; an archive below this size may compress more
# what zipfile and numpy raise for damaged files
ERRORS = (
    OSError,
    EOFError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,
    LookupError,
    TypeError,
    OverflowError,
    MemoryError,
    SyntaxError,
    tokenize.TokenError,
)


def read_arrays(path: Path, keys: Iterable[str]) -> dict[str, Array]:
    """The arrays with these keys; keys that the file does not have are left out."""
    key = "the file"
    if reason := obstacle(path):
        raise FedloomError(f"{path} cannot be read ({reason}); expected an npz file")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = {key: members[key] for key in sorted(set(keys) & members.keys())}
            for key, info in wanted.items():
                _check_packing(path, key, info)
            _check_size(path, list(wanted.values()))
            content = {}
            for key, info in wanted.items():
                _check_header(path, key, archive, info)
                with archive.open(info) as file:
                    content[key] = np.lib.format.read_array(file, allow_pickle=False, max_header_size=HEADER)
            return content
    except FedloomError:
        raise
    except ERRORS as error:
        if _is_single(path):
            raise FedloomError(
                f"{path} holds a single array; expected an npz file with the keys train_x, train_y, …"
            ) from None
        reason = brief(str(error) or type(error).__name__)
        raise FedloomError(f"{path}: {key} cannot be read ({reason}); expected a complete npz file") from error


def shape_of(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, dtype and header length of an array."""
    if info.compress_type not in PLAIN or info.flag_bits & 1:
        raise ValueError("an array that is encrypted, or compressed by a method that numpy does not use")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"an array of format {version}")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file, max_header_size=HEADER)
        return shape, dtype, file.tell()


def _check_packing(path: Path, key: str, info: zipfile.ZipInfo) -> None:
    if info.flag_bits & 1:
        raise FedloomError(f"{path}: {key} is encrypted; expected an npz file as np.savez writes it")
    if info.compress_type not in PLAIN:
        raise FedloomError(
            f"{path}: {key} is compressed by method {info.compress_type}; expected an npz file as np.savez or "
            f"np.savez_compressed writes it"
        )


def _check_size(path: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    size, compressed = sum(info.file_size for info in members), sum(info.compress_size for info in members)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        raise FedloomError(f"{path} claims to hold {size:,} bytes, more than the memory of this machine ({memory:,})")
    if size > UNSUSPICIOUS and size > MOST_COMPRESSION * compressed:
        raise FedloomError(
            f"{path} decompresses to {size:,} bytes, more than {MOST_COMPRESSION} times its size, which is unlikely for "
            f"images; if they are real, store them with np.savez"
        )


def _check_header(path: Path, key: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    shape, dtype, header = shape_of(archive, info)
    if dtype.hasobject:
        raise FedloomError(f"{path}: {key} is an array of Python objects; expected numbers or texts")
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize + header != info.file_size:
        raise FedloomError(
            f"{path}: {key} has {info.file_size:,} bytes, and its header says {dtype} of shape {brief(shape)}; "
            f"expected a complete npz file"
        )


def _is_single(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(6) == b"\x93NUMPY"
    except OSError:
        return False
