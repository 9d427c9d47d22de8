"""What the nodes of a masked round must have been told alike, and what they sign of it.

Masks hide an upload only in a sum with others. A server that tells nodes different things could make the others' part of
the sum vanish or known: a cohort of its own, weights that nobody learns from, a share of nothing. So each node signs, with
its public keys, all that it was told of the round, and believes only peers that signed the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedloom.deploy import private
from fedloom.deploy.roster import Roster, Signer
from fedloom.deploy.schema import Terms
from fedloom.deploy.site import Refusal, Site, joined
from fedloom.engine.files import read_json, read_tensors
from fedloom.errors import FedloomError

KEYS, SUM = "secure aggregation: keys", "secure aggregation: sum"  # purposes of signatures


@dataclass(frozen=True)
class Credentials:
    """By what a node knows the other sites, and they it."""

    roster: Roster
    signer: Signer

    @classmethod
    def of(cls, site: Site) -> Credentials | None:
        """None where the recipe asks for none."""
        settings, node = site.recipe.deploy.secure_aggregation, site.node
        if settings is None or not settings.authenticated:
            return None
        if node.roster is None or node.key is None:
            raise Refusal(
                "node config: roster or key is missing; secure aggregation needs roster=FILE (all sites' public keys, "
                "not from the server) and key=FILE (this site's private key)"
            )
        roster, signer = Roster.read(node.roster), Signer.read(node.key)
        if (known := roster.client_of(signer)) != node.client:
            listed = "does not list" if known is None else f"lists for client {known}"
            raise Refusal(f"node config: key is one that the roster {listed}, and this node is client {node.client}")
        return cls(roster, signer)


@dataclass(frozen=True)
class Agreement:
    """What this node holds true of a round; a signature of another site counts if it was made of the same."""

    credentials: Credentials
    common: Mapping[str, Any]
    client: int

    @classmethod
    def of(cls, site: Site, credentials: Credentials, terms: Terms, joined: str) -> Agreement:
        common = {
            "recipe": site.digest,
            "roster": credentials.roster.digest,
            "joined": joined,
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
    """One round, one sum: the same round over other sites, a second time, would show the difference of the two.

    Kept by recipe and not by federation, since a server may begin as many federations as it likes. A round that is
    repeated after a crash is over the same sites.
    """
    folder = private.inside(site.node.root, "sums", site.digest)
    path = private.file(folder, f"client-{site.node.client:06d}.json")
    known = read_json(path) if path.exists() else {}
    if not isinstance(known, dict):
        raise FedloomError(f"state: {path} is damaged; it says which sums this site was in, and only it can say so")
    before = known.get(str(round), clients)
    if before != clients:
        names = ", ".join(map(str, before if isinstance(before, list) else []))
        raise Refusal(
            f"was in a sum of round {round} of this recipe with clients {names}, and a sum with others would "
            "show what is between them; its operator can allow that by removing the folder sums from the node's state"
        )
    if str(round) not in known:
        private.make(folder, site.node.root)
        private.write(path, json.dumps({**known, str(round): clients}) + "\n", durable=True)


def joined_as(site: Site, federation: str) -> str:
    """What this node joined a federation with, from its files."""
    home = site.node.home(federation)
    told, weights = read_json(private.file(home, "site.json")), private.file(home, "initial.safetensors")
    try:
        initial, _ = read_tensors(weights)
    except FedloomError:
        told = None
    if not isinstance(told, dict):
        raise Refusal("has not joined this federation, or its state folder is gone")
    return joined(told.get("card"), initial)
