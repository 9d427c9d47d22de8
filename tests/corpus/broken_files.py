"""Hostile, odd and broken files, made anew for every test."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator

import numpy as np


def npy(header: str | bytes, body: bytes = b"", version: int = 1) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes((version, 0)) + length + text + body


def packed(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target.getvalue()


def sound() -> dict[str, bytes]:
    arrays = {"train_x": np.zeros((6, 4, 4), np.uint8), "train_y": np.arange(6) % 2}
    arrays |= {"test_x": np.zeros((2, 4, 4), np.uint8), "test_y": np.arange(2)}
    files = {}
    for name, values in arrays.items():
        target = io.BytesIO()
        np.save(target, values)
        files[f"{name}.npy"] = target.getvalue()
    return files


def bomb(count: int) -> bytes:
    """An honest array of zeros, a thousand times smaller than what it unfolds to; made without unfolding it."""
    head = npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count}, 16, 16), }}\n")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block, checksum, times = bytes(2**20), zlib.crc32(head), count * 256 // 2**20
    content = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    content += (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)) * times + packer.flush()
    for _ in range(times):
        checksum = zlib.crc32(block, checksum)
    info = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, checksum, len(content), len(head) + count * 256, 11, 0)
    local = b"PK\x03\x04" + info + b"train_x.npy"
    middle = b"PK\x01\x02" + struct.pack("<H", 20) + info + struct.pack("<HHHII", 0, 0, 0, 0, 0) + b"train_x.npy"
    start = len(local) + len(content)
    return local + content + middle + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(middle), start, 0)


def encrypted(content: bytes) -> bytes:
    """Every member says that it is."""
    for sign, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(sign)
        while at >= 0:
            content = content[: at + place] + b"\x01\x00" + content[at + place + 2 :]
            at = content.find(sign, at + 4)
    return content


def archives() -> Iterator[tuple[str, bytes]]:
    whole = sound()
    first = "train_x.npy"
    plain = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n"
    yield "encrypted", encrypted(packed(whole))
    yield "lzma", packed(whole, zipfile.ZIP_LZMA)
    yield "bzip2", packed(whole, zipfile.ZIP_BZIP2)
    yield "bomb", bomb(2**21)
    for name, header in {
        "huge header": "{" + " " * 60_000 + "}",
        "header of gibberish": "\x00\xff" * 40,
        "header that is code": "__import__('os').getpid()",
        "header nested": "(" * 5000,
        "header of a list": "[1]",
        "no shape": "{'descr': '|u1', 'fortran_order': False}",
        "too large": plain % ("|u1", "(99999999999, 4, 4)"),
        "larger than numbers are": plain % ("|u1", f"({'9' * 400},)"),
        "number that python refuses": plain % ("|u1", f"({'9' * 5000},)"),
        "negative": plain % ("|u1", "(-1, 4, 4)"),
        "smaller than it is": plain % ("|u1", "(1, 4, 4)"),
        "objects": plain % ("|O", "(6,)"),
        "records": "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (6,), }\n",
        "type unknown": plain % ("zz9", "(6, 4, 4)"),
        "dates": plain % ("<M8[s]", "(12,)"),
        "complex": plain % ("<c16", "(6,)"),
        "no dimension": plain % ("|u1", "()"),
        "nothing inside": plain % ("|u1", "(0, 4, 4)"),
    }.items():
        yield name, packed({**whole, first: npy(header, bytes(96))})
    yield "huge header, 2.0", packed({**whole, first: npy("{" + " " * 10**6 + "}", version=2)})
    yield "version 9", packed({**whole, first: b"\x93NUMPY\x09\x00" + bytes(100)})
    yield "no array", packed({**whole, first: b"hello"})
    yield "empty member", packed({**whole, first: b""})
    yield "empty archive", packed({})
    yield "a pickle", packed({**whole, first: b"\x80\x04N."})
    yield "x without dimension", packed({"x.npy": npy(plain % ("|u1", "()"), b"\0"), "y.npy": whole["train_y.npy"]})
    yield "cut", packed(whole)[:-30]
    yield "nothing", b""
    yield "text", b"hello"


def tensors(entries: dict[str, object], body: bytes = bytes(64)) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + body


def safetensors() -> Iterator[tuple[str, bytes]]:
    for kind, size in {
        "F8_E4M3": 1,
        "F8_E5M2": 1,
        "F8_E8M0": 1,
        "F4": 1,
        "F6_E2M3": 1,
        "U16": 2,
        "U32": 4,
        "U64": 8,
        "C64": 8,
        "BOOL": 1,
        "I8": 1,
        "F64": 8,
        "BF16": 2,
        "F16": 2,
        "NOTHING": 4,
        "f32": 4,
        "": 4,
        "F32": 4,
    }.items():
        yield f"type {kind}", tensors({"a": {"dtype": kind, "shape": [64 // size], "data_offsets": [0, 64]}})
    yield "not finite", tensors({"a": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}, b"\xff" * 64)
    yield "no number", tensors({"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}, bytes(4))
    yield "offsets outside", tensors({"a": {"dtype": "F32", "shape": [16], "data_offsets": [0, 6400]}})
    yield "offsets backwards", tensors({"a": {"dtype": "F32", "shape": [16], "data_offsets": [64, 0]}})
    yield "shape too large", tensors({"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 64]}})
    yield "shape negative", tensors({"a": {"dtype": "F32", "shape": [-16], "data_offsets": [0, 64]}})
    yield "metadata of numbers", tensors({"__metadata__": {"a": 1}})
    yield "header of a list", struct.pack("<Q", 3) + b"[1]"
    yield "header nested", struct.pack("<Q", 5000) + b"[" * 5000
    yield "header too long", struct.pack("<Q", 2**63) + b"{}"
    yield "nothing inside", tensors({}, b"")
    yield (
        "name of a thousand signs",
        tensors({"\N{SNOWMAN}" * 5000: {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}),
    )
    yield "nothing", b""
    yield "text", b"hello"


def pictures() -> Iterator[tuple[str, bytes]]:
    from PIL import Image

    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "WEBP"):
        target = io.BytesIO()
        Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(target, kind)
        whole = target.getvalue()
        yield f"{kind} cut", whole[: len(whole) // 2]
        yield f"{kind} of zeros", whole[:12] + bytes(len(whole) - 12)
        yield f"{kind} of ones", whole[:20] + b"\xff" * (len(whole) - 20)
    size = struct.pack(">II", 2**31 - 1, 2**31 - 1) + b"\x08\x00\x00\x00\x00"
    chunk = struct.pack(">I", 13) + b"IHDR" + size + struct.pack(">I", zlib.crc32(b"IHDR" + size))
    yield "PNG too large", b"\x89PNG\r\n\x1a\n" + chunk
    yield "PPM of 5,000 digits", b"P5 " + b"9" * 5000 + b" 1 255\n\0"
    yield "nothing", b""
