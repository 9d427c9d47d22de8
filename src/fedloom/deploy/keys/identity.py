"""A client belongs to the site that holds its key.

On joining, a node signs its client number, federation, recipe digest and node id together with a nonce of the server. So
a signature is of no use to another node, or later. The server accepts the keys of its roster. Without a roster, the first node
that joins as a client binds the client to its key for this run. No node without that key can take its place, also while the
site is offline or after the server was resumed.

A site's key is the file named in its node config; otherwise the node creates one in its state folder.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedloom.deploy.keys.roster import Roster, RosterEntry, Signer
from fedloom.deploy.messages.schema import Challenge, Proof, SiteFacts
from fedloom.deploy.site import private
from fedloom.deploy.site.config import NodeConfig
from fedloom.errors import FedloomError

PURPOSE = "joining a federation"


def _statement(federation: str, digest: str, client: int, node: int, nonce: str) -> dict[str, Any]:
    return {"federation": federation, "recipe": digest, "client": client, "node": node, "nonce": nonce}


# at the node


def proof(node: NodeConfig, digest: str, number: int, order: Challenge) -> dict[str, str]:
    """What a node adds to its answer to a challenge; `number` is Flower's id of this node."""
    signer = Signer.read(node.key) if node.key else _own_key(node)
    signature = signer.sign(PURPOSE, _statement(order.federation, digest, node.client, number, order.nonce))
    return {"key": signer.public, "signature": signature.hex()}


def _own_key(node: NodeConfig) -> Signer:
    """The key of a site without `key` in its node config: created once, and kept in its state folder."""
    path = private.file(node.root, f"client-{node.client:06d}.key")
    if not path.exists():
        private.make(node.root, node.root)
        key = ec.generate_private_key(ec.SECP384R1())
        form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        _create(path, key.private_bytes(*form))
    return Signer.read(path)


def _create(path: Path, content: bytes) -> None:
    """Create a file atomically; if another process creates it at the same time, the first one stays."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # readable by its owner alone
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(temporary)


# at the server


class KeyBindings:
    """Which key each client belongs to, stored in a file of the run folder."""

    def __init__(self, federation: str, digest: str, roster: Roster | None = None) -> None:
        self.federation, self.digest, self.roster = federation, digest, roster
        self.entries: dict[int, RosterEntry] = {}
        self._nonces: dict[int, str] = {}  # by node
        self._path: Path | None = None
        self._changed = False

    def challenge(self, node: int) -> dict[str, str]:
        """The fields of an order that asks a node who it is, with a new nonce."""
        self._nonces[node] = secrets.token_hex(16)
        return {"federation": self.federation, "nonce": self._nonces[node]}

    def flaw(self, client: int, node: int, given: Proof) -> str | None:
        """Why a node that answered the challenge is not the site of this client; None if it is."""
        nonce, signed = self._nonces.pop(node, None), bytes.fromhex(given.signature)
        if nonce is None:
            return f"it claims to be client {client}, and does not prove that it holds a key"
        try:
            claimed = Roster.of({client: ("", given.key)})
        except FedloomError:
            return f"it claims to be client {client}, and its key cannot be read"
        if not claimed.verify(client, PURPOSE, _statement(self.federation, self.digest, client, node, nonce), signed):
            return f"it claims to be client {client}, and its signature is wrong"
        return self._wrong_key(client, claimed.entries[client])

    def _wrong_key(self, client: int, claimed: RosterEntry) -> str | None:
        says = f"it claims to be client {client}, and its key {claimed.fingerprint}"
        if self.roster is not None:
            listed = self.roster.entries.get(client)
            return None if listed and listed.key == claimed.key else f"{says} is not the roster's for it"
        bound = self.entries.get(client)
        if bound is not None and bound.key != claimed.key:
            where = self._path.name if self._path else "the run folder"
            return (
                f"{says} is not the one that joined first ({bound.name}); if that site has lost its key, stop the run, "
                f"remove client {client} from {where} and resume"
            )
        owner = next((entry for entry in self.entries.values() if entry.key == claimed.key), None)
        return f"{says} is {owner.name}'s" if owner and owner.client != client else None

    def bind(self, client: int, facts: SiteFacts) -> None:
        """Bind a client to the key of a proof that `flaw` accepted; `save` writes it to the file."""
        if client not in self.entries:
            name = "".join(letter for letter in facts.name if letter.isprintable())[:60]
            label = f"client {client} {name}".strip()
            self.entries[client] = Roster.of({client: (label, facts.key)}).entries[client]
            self._changed = True

    def keep(self, path: Path) -> None:
        """Use this file from now on, and read the bindings that it already contains. It has the format of a roster."""
        self._path = path
        if path.exists():
            try:
                self.entries |= Roster.read(path).entries
            except FedloomError as error:
                raise FedloomError(f"{path} is damaged ({error}); it says which key each client belongs to") from None
        self.save()

    def save(self) -> None:
        if self._path is not None and self._changed:
            Roster(list(self.entries.values())).write(self._path)
            self._changed = False


def server_roster(path: str, clients: int) -> Roster | None:
    """The server's roster, if it has one; it must list every client of the recipe."""
    if not path:
        return None
    roster = Roster.read(path)
    if missing := [client for client in range(clients) if client not in roster.entries]:
        raise FedloomError(f"app config: roster {path} lists no key for client {missing[0]}; the recipe has {clients}")
    return roster
