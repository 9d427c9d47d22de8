"""Clients' state in a deployment: nodes keep it themselves, and the server keeps only each client's version.

A version is named by its round. A client starts a round from the version that the server names and stores a new one, which
becomes current when its upload is accepted. Two checkpoints are kept, so each client is sent the list of versions that they
use, and deletes the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from fedloom.engine.store.client_state import ClientStateStore
from fedloom.engine.tensor_layout import TensorLayout

Versions = dict[int, int]  # client -> round


class Ledger(ClientStateStore):
    """A ClientStateStore without the state itself."""

    def __init__(self, layout: TensorLayout, first: Tensor, folder: Path, budget: float) -> None:
        super().__init__(layout, first, folder, budget)
        self._drafted: Versions = {}
        self._checkpoints: list[Versions] = []  # newest first

    def version(self, client: int) -> int | None:
        """The client's current version; None before it first took part."""
        return self._version.get(client)

    def kept(self, client: int) -> list[int]:
        """The versions that the run may still need."""
        known = [self._version, *self._checkpoints]
        return sorted({versions[client] for versions in known if client in versions})

    def get(self, client: int) -> Tensor:
        return self.first

    def put(self, client: int, row: Tensor, round: int) -> None:
        if self.layout.nbytes:
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
        versions = [_versions(item) for item in (manifest, *kept)]
        self._version, self._checkpoints = dict(versions[0]), versions[:2]

    def clear(self) -> None:
        self._version, self._checkpoints = {}, []


def _versions(manifest: dict[str, Tensor]) -> Versions:
    return dict(zip(manifest["clients"].tolist(), manifest["versions"].tolist(), strict=True))
