"""The settings of one node, from Flower's `--node-config`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.deploy.site import private
from fedloom.deploy.site.private import Refusal

TEXTS = ("name", "data", "state", "recipe", "device", "roster", "key")
ALLOWED = ("partition-id", "num-partitions", *TEXTS)


@dataclass(frozen=True)
class NodeConfig:
    client: int
    name: str = ""
    data: str | None = None
    state: str = ""
    recipe: str | None = None  # digest of the only recipe that this site takes part in
    device: str | None = None
    roster: str | None = None  # a file with all sites' public keys
    key: str | None = None  # a file with this site's private key

    @classmethod
    def of(cls, config: Mapping[str, Any], clients: int) -> NodeConfig:
        if unknown := sorted(set(config) - set(ALLOWED)):
            raise Refusal(f"node config: {unknown[0]} is unknown; allowed are {', '.join(ALLOWED)}")
        number = config.get("partition-id")
        if not isinstance(number, int) or not 0 <= number < clients:
            raise Refusal(f"node config: partition-id is {number!r}; the recipe has clients 0 to {clients - 1}")
        return cls(client=number, **{name: str(config[name]) for name in TEXTS if name in config})

    @property
    def root(self) -> Path:
        """The folder for the states of all federations."""
        return Path(self.state or os.environ.get("FEDLOOM_SITES") or "~/.fedloom/sites").expanduser()

    def home(self, federation: str) -> Path:
        """The folder for the state of this client in one federation."""
        return private.home(self.root, federation, self.client)
