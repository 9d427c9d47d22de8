"""Clients' state between rounds: allocated when a client first takes part, moved to disk when RAM is short.

A client's state is one row of bytes. Each change makes a new version, named by its round. A version is written to a file when
its row must leave RAM or when a checkpoint is made, and deleted when no kept checkpoint refers to it. So the cost of a
checkpoint depends on the clients since the last one, and a kill at any moment loses nothing that a checkpoint needs.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from fedloom.engine.tensor_layout import TensorLayout
from fedloom.errors import FedloomError
from fedloom.io.files import read_tensors, write_tensors

Version = tuple[int, int]  # client, round


class ClientStateStore:
    def __init__(self, layout: TensorLayout, first: Tensor, folder: Path, budget: float) -> None:
        self.layout, self.first, self.folder = layout, first, folder
        self.capacity = max(budget // max(layout.nbytes, 1), 1) if math.isfinite(budget) else math.inf
        self._rows: OrderedDict[int, Tensor] = OrderedDict()  # least recently used first
        self._version: dict[int, int] = {}  # of every client that has state
        self._written: dict[int, int] = {}  # by client: newest version on disk
        self._superseded: list[Version] = []  # used by the newest checkpoint, not by the next one
        self._expiring: list[Version] = []  # used only by the checkpoint before the newest
        self._checkpointed = -1

    def __len__(self) -> int:
        return len(self._version)

    def __contains__(self, client: int) -> bool:
        return client in self._version

    @property
    def in_ram(self) -> int:
        return len(self._rows)

    def get(self, client: int) -> Tensor:
        """The client's row, or the initial values if it never took part. Do not write to it."""
        if client not in self._version:
            return self.first
        if client in self._rows:
            self._rows.move_to_end(client)
            return self._rows[client]
        row = self._read((client, self._written[client]))
        self._remember(client, row)
        return row

    def put(self, client: int, row: Tensor, round: int) -> None:
        if self.layout.nbytes == 0:
            return
        self._version[client] = round
        self._remember(client, row.clone())

    def checkpoint(self) -> dict[str, Tensor]:
        """Write what changed; returns the current version of every client."""
        for client in self._rows:
            self._write(client)
        clients = sorted(self._version)
        return {
            "clients": torch.tensor(clients, dtype=torch.int64),
            "versions": torch.tensor([self._version[client] for client in clients], dtype=torch.int64),
        }

    def settle(self, round: int) -> None:
        """The checkpoint of this round is written and the oldest one deleted: delete the versions that only it used."""
        for version in self._expiring:
            self._path(version).unlink(missing_ok=True)
        self._expiring, self._superseded = self._superseded, []
        self._checkpointed = round

    def restore(self, manifest: dict[str, Tensor], round: int, kept: Iterable[dict[str, Tensor]] = ()) -> None:
        """Go back to a checkpoint. Every file that it uses is verified; files that no checkpoint uses are deleted."""
        versions_of = [_versions(manifest), *(_versions(other) for other in kept)]
        for version in versions_of[0]:
            self._read(version)
        self._rows.clear()
        self._version = dict(versions_of[0])
        self._written = dict(versions_of[0])
        older = {version for other in versions_of[1:] for version in other}
        self._superseded, self._expiring = [], sorted(older - set(versions_of[0]))
        self._checkpointed = round
        wanted = {self._path(version).name for versions in versions_of for version in versions}
        for path in self.folder.glob("*.safetensors"):
            if path.name not in wanted:
                path.unlink()

    def clear(self) -> None:
        """Forget everything: no client has taken part yet."""
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
        write_tensors(self._path((client, version)), self.layout.views(self._rows[client]))
        self._written[client] = version
        if before is not None and before <= self._checkpointed:
            self._superseded.append((client, before))
        elif before is not None:
            self._path((client, before)).unlink(missing_ok=True)

    def _read(self, version: Version) -> Tensor:
        tensors, _ = read_tensors(self._path(version))
        for item in self.layout.items:
            if item.name not in tensors or tuple(tensors[item.name].shape) != item.shape:
                raise FedloomError(f"{self._path(version)} does not hold the client state of this method ({item.name})")
        return self.layout.row(tensors)

    def _path(self, version: Version) -> Path:
        return self.folder / f"client-{version[0]:06d}-round-{version[1]:06d}.safetensors"


def _versions(manifest: dict[str, Tensor]) -> list[Version]:
    return list(zip(manifest["clients"].tolist(), manifest["versions"].tolist(), strict=True))
