"""Named tensors packed into one row of bytes: a broadcast, an upload or a client's state is one copy.

A layout is made once from example tensors; after that a message is a row of bytes, and its tensors are views into it. Rows
that workers share are anonymous shared mappings: they have no name, so nothing is left behind however a process ends, and
they do not count against a container's /dev/shm.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGN = 64


@dataclass(frozen=True)
class Item:
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    nbytes: int

    def view(self, row: Tensor) -> Tensor:
        if self.nbytes == 0:  # an empty slice cannot be viewed as another type
            return torch.empty(self.shape, dtype=self.dtype)
        return row[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)


class TensorLayout:
    """The order and offsets of named tensors in a row of bytes."""

    def __init__(self, examples: Mapping[str, Tensor]) -> None:
        self.items: list[Item] = []
        offset = 0
        for name, tensor in examples.items():
            nbytes = tensor.numel() * tensor.element_size()
            self.items.append(Item(name, tuple(tensor.shape), tensor.dtype, offset, nbytes))
            offset += -(-nbytes // ALIGN) * ALIGN
        self.nbytes = offset
        self.payload = sum(item.nbytes for item in self.items)  # without the padding between tensors

    @property
    def by_name(self) -> dict[str, Item]:
        return {item.name: item for item in self.items}

    @property
    def names(self) -> list[str]:
        return [item.name for item in self.items]

    def views(self, row: Tensor) -> dict[str, Tensor]:
        return {item.name: item.view(row) for item in self.items}

    def pack(self, tensors: Mapping[str, Tensor], row: Tensor) -> None:
        for name, view in self.views(row).items():
            view.copy_(tensors[name])

    def payload_of(self, part: str) -> int:
        """Bytes of one part's tensors."""
        return sum(item.nbytes for item in self.items if item.name.startswith(part + "."))

    def row(self, tensors: Mapping[str, Tensor]) -> Tensor:
        row = torch.zeros(self.nbytes, dtype=torch.uint8)
        self.pack(tensors, row)
        return row


def shared(nbytes: int) -> Tensor:
    """Zeroed bytes that this process shares with every worker forked from it."""
    return torch.frombuffer(mmap.mmap(-1, max(nbytes, 1)), dtype=torch.uint8)[:nbytes]


def scoped(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors of one part, under its own names."""
    prefix = part + "."
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def prefixed(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    return {f"{part}.{name}": tensor for name, tensor in tensors.items()}
