"""What all nodes of a round with secure aggregation must agree on, and their signatures on it.

Masks hide an upload only in a sum with others. A server that tells nodes different things could make the others' part of
the sum vanish or known to it: with an invented cohort, with weights that give zero updates, with shares of zero. So each node
signs its public keys together with all that it was told about the round, and accepts only peers that signed the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedloom.deploy.keys.roster import Roster, Signer
from fedloom.deploy.messages.schema import RoundTerms
from fedloom.deploy.site import private
from fedloom.deploy.site.private import Refusal
from fedloom.deploy.site.site import Site
from fedloom.deploy.site.worker import join_digest
from fedloom.errors import FedloomError
from fedloom.io.files import read_json, read_tensors

KEYS, SUM = "secure aggregation: keys", "secure aggregation: sum"  # purposes of signatures


@dataclass(frozen=True)
class Credentials:
    """A node's own private key, and the public keys of all sites."""

    roster: Roster
    signer: Signer

    @classmethod
    def of(cls, site: Site) -> Credentials | None:
        """None if the recipe does not ask for authentication."""
        settings, node = site.recipe.deploy.secure_aggregation, site.node
        if settings is None or not settings.authenticated:
            return None
        if node.roster is None or node.key is None:
            raise Refusal(
                "node config: roster or key is missing; secure aggregation needs roster=FILE (all sites' public keys, "
                "not from the server) and key=FILE (this site's private key)"
            )
        roster, signer = Roster.read(node.roster), Signer.read(node.key)
        if (owner := roster.client_of(signer)) != node.client:
            listed = "does not list" if owner is None else f"lists for client {owner}"
            raise Refusal(f"node config: key is one that the roster {listed}, and this node is client {node.client}")
        return cls(roster, signer)


@dataclass(frozen=True)
class Agreement:
    """What this node was told about a round; a signature of another site is valid if that site was told the same."""

    credentials: Credentials
    common: Mapping[str, Any]
    client: int

    @classmethod
    def of(cls, site: Site, credentials: Credentials, terms: RoundTerms, join_digest: str) -> Agreement:
        common = {
            "recipe": site.digest,
            "roster": credentials.roster.digest,
            "joined": join_digest,
            "terms": terms.to_json(),
        }
        return cls(credentials, common, site.node.client)

    def sign_keys(self, pair: tuple[bytes, bytes]) -> bytes:
        return self.credentials.signer.sign(KEYS, self._keys(self.client, pair))

    def verifies_keys(self, client: int, pair: tuple[bytes, bytes], signature: bytes) -> bool:
        return self.credentials.roster.verify(client, KEYS, self._keys(client, pair), signature)

    def sign_sum(self, clients: list[int]) -> bytes:
        return self.credentials.signer.sign(SUM, {**self.common, "clients": clients})

    def verifies_sum(self, client: int, clients: list[int], signature: bytes) -> bool:
        return self.credentials.roster.verify(client, SUM, {**self.common, "clients": clients}, signature)

    def _keys(self, client: int, pair: tuple[bytes, bytes]) -> dict[str, Any]:
        return {**self.common, "client": client, "keys": [key.hex() for key in pair]}


def remember_sum(site: Site, round: int, clients: list[int]) -> None:
    """Store which sum of a round this site signed, and refuse another: it would reveal the difference of the two.

    Stored by recipe and not by federation, since a server can start as many federations as it likes. A round that is repeated
    after a crash must be over the same sites.
    """
    folder = private.inside(site.node.root, "sums", site.digest)
    path = private.file(folder, f"client-{site.node.client:06d}.json")
    sums = read_json(path) if path.exists() else {}
    if not isinstance(sums, dict):
        raise FedloomError(f"state: {path} is damaged; it is the only record of the sums that this site was in")
    before = sums.get(str(round), clients)
    if before != clients:
        names = ", ".join(map(str, before if isinstance(before, list) else []))
        raise Refusal(
            f"was in a sum of round {round} of this recipe with clients {names}, and a sum with others would "
            "show what is between them; its operator can allow that by removing the folder sums from the node's state"
        )
    if str(round) not in sums:
        private.make(folder, site.node.root)
        private.write(path, json.dumps({**sums, str(round): clients}) + "\n", durable=True)


def stored_join_digest(site: Site, federation: str) -> str:
    """Digest of what this node was told when it joined a federation, from its files."""
    home = site.node.home(federation)
    stored, weights = read_json(private.file(home, "site.json")), private.file(home, "initial.safetensors")
    try:
        initial, _ = read_tensors(weights)
    except FedloomError:
        stored = None
    if not isinstance(stored, dict):
        raise Refusal("has not joined this federation, or its state folder is gone")
    return join_digest(stored.get("info"), initial)
