"""The format of messages: an order or a report as a short JSON text, and named tensors as raw bytes with dtype and shape.

Nothing is unpickled and no array file format is parsed. Names, dtypes, shapes and lengths of all tensors are compared with what
was asked for before a byte is copied. Where the shapes cannot be known in advance, the total size is bounded.
The text is parsed by `schema.py` alone.
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

from fedloom.deploy.messages.checked import Tensors
from fedloom.deploy.messages.schema import read_json
from fedloom.engine.tensor_layout import Item
from fedloom.errors import FedloomError, brief, shown

RAW = "fedloom.raw"
TEXT = "fedloom"
MAX_EXTRA_BYTES = 16 << 20  # of the record of Flower's secure aggregation
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)
} | {"bool": torch.bool}

OutgoingOrder = tuple[Mapping[str, Any], Mapping[str, Mapping[str, Tensor]]]  # text and tensors of an order
Expected = Mapping[str, Mapping[str, Item]]  # by group and name; error messages use the name of the item


def pack(text: Mapping[str, Any], **groups: Mapping[str, Tensor] | ConfigRecord) -> RecordDict:
    """A message: a JSON text, groups of tensors, and records of Flower's protocols. Empty tensors are left out."""
    content: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {TEXT: ConfigRecord({"json": json.dumps(text)})}
    for group, tensors in groups.items():
        if isinstance(tensors, ConfigRecord):
            content[group] = tensors
            continue
        content[group] = ArrayRecord({name: _array(tensor) for name, tensor in tensors.items() if tensor.numel()})
    return RecordDict(content)


def text_of(content: RecordDict) -> str:
    """The JSON text of a message, not yet parsed."""
    record = content.get(TEXT)
    text = record.get("json") if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str):
        raise FedloomError("the message has no fedloom text")
    return text


@dataclass(frozen=True)
class ArrivedTensors:
    """The tensors of a message that arrived, not yet checked.

    `extra`: name of a record that other code reads. `max_bytes`: limit for all tensors together.
    """

    content: RecordDict
    extra: str | None = None
    max_bytes: float = float("inf")

    def read(self, expected: Expected | None) -> dict[str, Tensors]:
        """The tensors, if only expected ones are there (None: any names and shapes); otherwise an error.

        A group or tensor may be missing; `pack_checked` decides whether that is an error.
        """
        arrays: dict[str, dict[str, Array]] = {}
        total = 0
        for group, record in self.content.items():
            if group in (TEXT, self.extra):
                if isinstance(record, ConfigRecord) and group == self.extra and _size(record) > MAX_EXTRA_BYTES:
                    raise FedloomError(f"its keys take {_size(record)} bytes; {MAX_EXTRA_BYTES} are allowed")
                continue
            if not isinstance(record, ArrayRecord) or (expected is not None and group not in expected):
                raise FedloomError(f"{brief(group)} was not asked for")
            for name, array in record.items():
                if expected is not None and name not in expected[group]:
                    raise FedloomError(f"{brief(name)} was not asked for")
                _check(str(name), array, None if expected is None else expected[group][name])
                total += len(array.data)
            arrays[str(group)] = dict(record)
        if total > self.max_bytes:
            raise FedloomError(
                f"its tensors take {total} bytes, and deploy.max_message_mb allows {int(self.max_bytes)}"
            )
        return {group: {name: _tensor(array) for name, array in named.items()} for group, named in arrays.items()}


def unpack(content: RecordDict, extra: str | None = None) -> tuple[dict[str, Any], dict[str, Tensors]]:
    """Text and tensors of a trusted message, without checks of names and shapes."""
    return read_json(text_of(content)), ArrivedTensors(content, extra).read(None)


def _array(tensor: Tensor) -> Array:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return Array(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape), stype=RAW, data=data)


def _check(name: str, array: Array, item: Item | None) -> None:
    """Check that an array's bytes match its dtype and shape, and these what was asked for."""
    called = brief(name) if item is None else item.name
    if array.stype != RAW or array.dtype not in DTYPES:
        raise FedloomError(f"{called} is {brief(array.dtype)} as {brief(array.stype)}, which is not accepted")
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


def _size(record: ConfigRecord) -> int:
    """Approximate bytes of a Flower record."""
    values = [item for value in record.values() for item in (value if isinstance(value, list) else [value])]
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in values) + sum(map(len, record))
