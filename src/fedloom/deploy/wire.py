"""What travels: an order or a report as a short JSON text, and named tensors as raw bytes with their type and shape.

Nothing is unpickled, and no reader of an array format is involved: bytes are looked at as numbers only after type,
shape and length were compared with what was agreed on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedloom.deploy.checked import Tensors
from fedloom.errors import FedloomError

RAW = "fedloom.raw"
TEXT = "fedloom"
LONGEST = 1 << 20  # characters of an order or report
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)
} | {"bool": torch.bool}


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


def unpack(content: RecordDict, beside: str | None = None) -> tuple[dict[str, Any], dict[str, Tensors]]:
    """Text and tensors of a message; whatever is not as `pack` makes it is an error with the reason.

    `beside`: a record that may be there for somebody else to read.
    """
    record = content.get(TEXT)
    text = record.get("json") if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str) or len(text) > LONGEST:
        raise FedloomError("the message has no text of fedloom's")
    try:
        order = json.loads(text)
    except (ValueError, RecursionError):
        raise FedloomError("the message's text is not JSON") from None
    if not isinstance(order, dict):
        raise FedloomError("the message's text is not an object")
    groups = {}
    for name, found in content.items():
        if name not in (TEXT, beside):
            if not isinstance(found, ArrayRecord):
                raise FedloomError(f"{name} was not asked for")
            groups[str(name)] = {str(key): _tensor(str(key), array) for key, array in found.items()}
    return order, groups


def _array(tensor: Tensor) -> Array:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return Array(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape), stype=RAW, data=data)


def _tensor(name: str, array: Array) -> Tensor:
    if array.stype != RAW or array.dtype not in DTYPES:
        raise FedloomError(f"{name} is {array.dtype} as {array.stype}, which is not accepted")
    dtype = DTYPES[array.dtype]
    count = 1
    for size in array.shape:
        if size < 0:
            raise FedloomError(f"{name} has a shape of {array.shape}")
        count *= size
    if count == 0 or len(array.data) != count * dtype.itemsize:
        raise FedloomError(
            f"{name} has {len(array.data)} bytes, which do not make {array.dtype} of shape {array.shape}"
        )
    return torch.frombuffer(bytearray(array.data), dtype=dtype).reshape(array.shape)
