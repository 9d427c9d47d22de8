"""Whose place a client's number is: that of the site that holds its key.

On joining, a node signs which client it is, in which federation, under which recipe and node number, together with a number
that the server has just drawn; so what one node signed is of no use to another, or at another time. The server believes the
keys of its roster. Without one, the first node that joins as a client binds the client to its key for this run, and
nobody without that key takes its place, be the site away, the server resumed, or the other's node number smaller.

A site's key is the file that its node config names, else one that the node makes for itself in its state folder.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedloom.deploy import private
from fedloom.deploy.roster import Entry, Roster, Signer
from fedloom.deploy.schema import Facts, Proof, Question
from fedloom.deploy.site import Node
from fedloom.errors import FedloomError

PURPOSE = "joining a federation"


def _statement(federation: str, digest: str, client: int, node: int, nonce: str) -> dict[str, Any]:
    return {"federation": federation, "recipe": digest, "client": client, "node": node, "nonce": nonce}


# a node


def proof(node: Node, digest: str, number: int, order: Question) -> dict[str, str]:
    """What a node adds to its answer when it is asked to join; `number` is Flower's for this node."""
    signer = Signer.read(node.key) if node.key else _own_key(node)
    signature = signer.sign(PURPOSE, _statement(order.federation, digest, node.client, number, order.nonce))
    return {"key": signer.public, "signature": signature.hex()}


def _own_key(node: Node) -> Signer:
    """The key of a site that was given none: made once, and kept in its state folder."""
    path = private.file(node.root, f"client-{node.client:06d}.key")
    if not path.exists():
        private.make(node.root, node.root)
        key = ec.generate_private_key(ec.SECP384R1())
        form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        _create(path, key.private_bytes(*form))
    return Signer.read(path)


def _create(path: Path, content: bytes) -> None:
    """A new file, whole or not at all; if another process makes it at the same time, one of the two stays."""
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


# the server


class Bindings:
    """Which key each client belongs to, in a file of the run folder."""

    def __init__(self, federation: str, digest: str, roster: Roster | None = None) -> None:
        self.federation, self.digest, self.roster = federation, digest, roster
        self.entries: dict[int, Entry] = {}
        self._nonces: dict[int, str] = {}  # by node: what it was asked to sign
        self._path: Path | None = None
        self._changed = False

    def question(self, node: int) -> dict[str, str]:
        """What a node is asked in order to know who it is."""
        self._nonces[node] = secrets.token_hex(16)
        return {"federation": self.federation, "nonce": self._nonces[node]}

    def flaw(self, client: int, node: int, given: Proof) -> str | None:
        """Why a node that answered the question is not the one that this client belongs to; None if it is."""
        nonce, signed = self._nonces.pop(node, None), bytes.fromhex(given.signature)
        if nonce is None:
            return f"it says to be client {client}, and does not prove that it holds a key"
        try:
            claimed = Roster.of({client: ("", given.key)})
        except FedloomError:
            return f"it says to be client {client}, and its key cannot be read"
        if not claimed.verify(client, PURPOSE, _statement(self.federation, self.digest, client, node, nonce), signed):
            return f"it says to be client {client}, and its signature is wrong"
        return self._foreign(client, claimed.entries[client])

    def _foreign(self, client: int, claimed: Entry) -> str | None:
        says = f"it says to be client {client}, and its key {claimed.fingerprint}"
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

    def bind(self, client: int, facts: Facts) -> None:
        """After `flaw` found none. `save` writes it."""
        if client not in self.entries:
            name = "".join(letter for letter in facts.name if letter.isprintable())[:60]
            known = f"client {client} {name}".strip()
            self.entries[client] = Roster.of({client: (known, facts.key)}).entries[client]
            self._changed = True

    def keep(self, path: Path) -> None:
        """Keep them in this file from now on; what it holds already is known. It is a roster, too."""
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


def known_sites(path: str, clients: int) -> Roster | None:
    """The server's roster, which must list every client of the recipe."""
    if not path:
        return None
    roster = Roster.read(path)
    if missing := [client for client in range(clients) if client not in roster.entries]:
        raise FedloomError(f"app config: roster {path} lists no key for client {missing[0]}; the recipe has {clients}")
    return roster
