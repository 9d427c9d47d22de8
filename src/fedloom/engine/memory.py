"""What clients remember between rounds: allocated when a client first needs it, on disk when there is too much of it.

A client's memory is one row of bytes. Each change makes a new version, named by its round; a file is written when the
row must leave RAM or when a checkpoint is made, and an older version stays until no kept checkpoint speaks of it. So
a checkpoint costs what the clients since the last one changed, and a kill at any moment loses nothing that a
checkpoint needs.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from fedloom.engine.arena import Packing
from fedloom.engine.files import read_tensors, write_tensors
from fedloom.errors import FedloomError

Version = tuple[int, int]  # client, round


class ClientMemory:
    def __init__(self, packing: Packing, first: Tensor, folder: Path, budget: float) -> None:
        self.packing, self.first, self.folder = packing, first, folder
        self.capacity = max(budget // max(packing.nbytes, 1), 1) if math.isfinite(budget) else math.inf
        self._rows: OrderedDict[int, Tensor] = OrderedDict()  # the least recently used first
        self._version: dict[int, int] = {}  # of every client that remembers something
        self._written: dict[int, int] = {}  # newest version on disk
        self._superseded: list[Version] = []  # spoken of by the newest checkpoint, not by the next one
        self._expiring: list[Version] = []  # spoken of by the checkpoint before the newest only
        self._checkpointed = -1

    def __len__(self) -> int:
        return len(self._version)

    def __contains__(self, client: int) -> bool:
        return client in self._version

    @property
    def in_ram(self) -> int:
        return len(self._rows)

    def get(self, client: int) -> Tensor:
        """The client's row, or the first values if it never took part. Not to be written to."""
        if client not in self._version:
            return self.first
        if client in self._rows:
            self._rows.move_to_end(client)
            return self._rows[client]
        row = self._read((client, self._written[client]))
        self._remember(client, row)
        return row

    def put(self, client: int, row: Tensor, round: int) -> None:
        if self.packing.nbytes == 0:
            return
        self._version[client] = round
        self._remember(client, row.clone())

    def checkpoint(self) -> dict[str, Tensor]:
        """Write what changed; returns which version of which client belongs to this moment."""
        for client in self._rows:
            self._write(client)
        clients = sorted(self._version)
        return {
            "clients": torch.tensor(clients, dtype=torch.int64),
            "versions": torch.tensor([self._version[client] for client in clients], dtype=torch.int64),
        }

    def settle(self, round: int) -> None:
        """The checkpoint of this round is in place and the one before the last is gone: so is what only it spoke of."""
        for version in self._expiring:
            self._path(version).unlink(missing_ok=True)
        self._expiring, self._superseded = self._superseded, []
        self._checkpointed = round

    def restore(self, manifest: dict[str, Tensor], round: int, kept: Iterable[dict[str, Tensor]] = ()) -> None:
        """Go back to a checkpoint; every file it speaks of is verified, files that none speaks of are removed."""
        spoken = [_versions(manifest), *(_versions(other) for other in kept)]
        for version in spoken[0]:
            self._read(version)
        self._rows.clear()
        self._version = dict(spoken[0])
        self._written = dict(spoken[0])
        older = {version for other in spoken[1:] for version in other}
        self._superseded, self._expiring = [], sorted(older - set(spoken[0]))
        self._checkpointed = round
        wanted = {self._path(version).name for versions in spoken for version in versions}
        for path in self.folder.glob("*.safetensors"):
            if path.name not in wanted:
                path.unlink()

    def clear(self) -> None:
        """Nobody has taken part yet."""
        for path in self.folder.glob("*.safetensors"):
            path.unlink()
        self._rows.clear()
        self._version, self._written = {}, {}
        self._superseded, self._expiring, self._checkpointed = [], [], -1

    def _remember(self, client: int, row: Tensor) -> None:
        self._rows[client] = row
        self._rows.move_to_end(client)
        while len(self._rows) > self.capacity:
            oldest = next(iter(self._rows))
            self._write(oldest)
            del self._rows[oldest]

    def _write(self, client: int) -> None:
        version, before = self._version[client], self._written.get(client)
        if before == version:
            return
        write_tensors(self._path((client, version)), self.packing.views(self._rows[client]))
        self._written[client] = version
        if before is not None and before <= self._checkpointed:
            self._superseded.append((client, before))
        elif before is not None:
            self._path((client, before)).unlink(missing_ok=True)

    def _read(self, version: Version) -> Tensor:
        tensors, _ = read_tensors(self._path(version))
        for item in self.packing.items:
            if item.name not in tensors or tuple(tensors[item.name].shape) != item.shape:
                raise FedloomError(f"{self._path(version)} does not hold what this method remembers ({item.name})")
        return self.packing.row(tensors)

    def _path(self, version: Version) -> Path:
        return self.folder / f"client-{version[0]:06d}-round-{version[1]:06d}.safetensors"


def _versions(manifest: dict[str, Tensor]) -> list[Version]:
    return list(zip(manifest["clients"].tolist(), manifest["versions"].tolist(), strict=True))
