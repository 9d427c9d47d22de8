"""The clients' memory of a federation whose clients keep it themselves: here, only which version each of them is at.

A version is named by its round. A client begins a round from the version that the server names and leaves a new one;
it counts from the moment its upload is accepted. Two checkpoints can be gone back to, so each client is told which
versions these still speak of, and removes the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from fedloom.engine.arena import Packing
from fedloom.engine.memory import ClientMemory

Versions = dict[int, int]  # client -> round


class Ledger(ClientMemory):
    """Stands where a ClientMemory stands, and never holds a byte of what clients remember."""

    def __init__(self, packing: Packing, first: Tensor, folder: Path, budget: float) -> None:
        super().__init__(packing, first, folder, budget)
        self._drafted: Versions = {}
        self._checkpoints: list[Versions] = []  # the newest first

    def version(self, client: int) -> int | None:
        """Where the client stands; None before it first took part."""
        return self._version.get(client)

    def kept(self, client: int) -> list[int]:
        """The versions that the run may still ask for."""
        known = [self._version, *self._checkpoints]
        return sorted({versions[client] for versions in known if client in versions})

    def get(self, client: int) -> Tensor:
        return self.first

    def put(self, client: int, row: Tensor, round: int) -> None:
        if self.packing.nbytes:
            self._version[client] = round

    def checkpoint(self) -> dict[str, Tensor]:
        clients = sorted(self._version)
        self._drafted = dict(self._version)
        return {
            "clients": torch.tensor(clients, dtype=torch.int64),
            "versions": torch.tensor([self._version[client] for client in clients], dtype=torch.int64),
        }

    def settle(self, round: int) -> None:
        self._checkpoints = [self._drafted, *self._checkpoints][:2]

    def restore(self, manifest: dict[str, Tensor], round: int, kept: Iterable[dict[str, Tensor]] = ()) -> None:
        spoken = [_versions(item) for item in (manifest, *kept)]
        self._version, self._checkpoints = dict(spoken[0]), spoken[:2]

    def clear(self) -> None:
        self._version, self._checkpoints = {}, []


def _versions(manifest: dict[str, Tensor]) -> Versions:
    return dict(zip(manifest["clients"].tolist(), manifest["versions"].tolist(), strict=True))
