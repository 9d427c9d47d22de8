"""What travels: an order or a report as a short JSON text, and named tensors as raw bytes with their type and shape.

Nothing is unpickled, and no reader of an array format is involved. Names, types, shapes and lengths of all tensors are
compared with what was asked for before a byte of any is copied; so is their total size, where nobody can know the shapes.
The text is read by `schema.py` alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedloom.deploy.checked import Tensors
from fedloom.deploy.schema import read_json, shown
from fedloom.engine.arena import Item
from fedloom.errors import FedloomError

RAW = "fedloom.raw"
TEXT = "fedloom"
KEYS = 16 << 20  # bytes of what Flower's own protocols say beside
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)
} | {"bool": torch.bool}

Expected = Mapping[str, Mapping[str, Item]]  # by group and name; an item's own name is how a sentence calls it


def pack(text: Mapping[str, Any], **groups: Mapping[str, Tensor] | ConfigRecord) -> RecordDict:
    """A message: a JSON text and groups of tensors, or of what Flower's own protocols say. Tensors without elements are
    left out."""
    content: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {TEXT: ConfigRecord({"json": json.dumps(text)})}
    for group, tensors in groups.items():
        if isinstance(tensors, ConfigRecord):
            content[group] = tensors
            continue
        content[group] = ArrayRecord({name: _array(tensor) for name, tensor in tensors.items() if tensor.numel()})
    return RecordDict(content)


def text_of(content: RecordDict) -> str:
    """The JSON text of a message, unread."""
    record = content.get(TEXT)
    text = record.get("json") if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str):
        raise FedloomError("the message has no text of fedloom's")
    return text


@dataclass(frozen=True)
class Arrays:
    """The tensors of a message that arrived, not yet looked at.

    `beside`: a record that may be there for somebody else to read. `most`: bytes that all tensors together may have.
    """

    content: RecordDict
    beside: str | None = None
    most: float = float("inf")

    def read(self, expected: Expected | None) -> dict[str, Tensors]:
        """The tensors, if there are none but those that are expected (None: of any shape); else an error with the reason.

        A group or tensor may be missing; `checked.fit` says whether that matters.
        """
        found: dict[str, dict[str, Array]] = {}
        total = 0
        for group, record in self.content.items():
            if group in (TEXT, self.beside):
                if isinstance(record, ConfigRecord) and group == self.beside and _size(record) > KEYS:
                    raise FedloomError(f"its keys take {_size(record)} bytes; {KEYS} are allowed")
                continue
            if not isinstance(record, ArrayRecord) or (expected is not None and group not in expected):
                raise FedloomError(f"{_called(group)} was not asked for")
            for name, array in record.items():
                if expected is not None and name not in expected[group]:
                    raise FedloomError(f"{_called(name)} was not asked for")
                _check(str(name), array, None if expected is None else expected[group][name])
                total += len(array.data)
            found[str(group)] = dict(record)
        if total > self.most:
            raise FedloomError(f"its tensors take {total} bytes, and deploy.max_message_mb allows {int(self.most)}")
        return {g: {name: _tensor(array) for name, array in arrays.items()} for g, arrays in found.items()}


def unpack(content: RecordDict, beside: str | None = None) -> tuple[dict[str, Any], dict[str, Tensors]]:
    """Text and tensors of a message that is known to be good, whatever they are."""
    return read_json(text_of(content)), Arrays(content, beside).read(None)


def _array(tensor: Tensor) -> Array:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return Array(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape), stype=RAW, data=data)


def _check(name: str, array: Array, item: Item | None) -> None:
    """Whether the bytes are what they are said to be, and that is what was asked for."""
    called = _called(name) if item is None else item.name
    if array.stype != RAW or array.dtype not in DTYPES:
        raise FedloomError(f"{called} is {_called(array.dtype)} as {_called(array.stype)}, which is not accepted")
    dtype, shape = DTYPES[array.dtype], tuple(array.shape)
    if item is not None and dtype != item.dtype:
        raise FedloomError(f"{called} is {dtype}, not {item.dtype}")
    if item is not None and shape != item.shape:
        raise FedloomError(f"{called} has shape {shown(shape)}, not {item.shape}")
    if len(shape) > 8 or min(shape, default=0) < 0:
        raise FedloomError(f"{called} has a shape of {shown(shape)}")
    count = math.prod(shape)
    if count == 0 or len(array.data) != count * dtype.itemsize:
        raise FedloomError(
            f"{called} has {len(array.data)} bytes, which do not make {array.dtype} of shape {shown(shape)}"
        )


def _tensor(array: Array) -> Tensor:
    return torch.frombuffer(bytearray(array.data), dtype=DTYPES[array.dtype]).reshape(tuple(array.shape))


def _called(name: object) -> str:
    return shown(name).strip("'")


def _size(record: ConfigRecord) -> int:
    """Bytes of a record of Flower's, roughly."""
    values = [item for value in record.values() for item in (value if isinstance(value, list) else [value])]
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in values) + sum(map(len, record))
