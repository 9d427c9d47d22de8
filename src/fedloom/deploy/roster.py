"""Who takes part: the roster lists every site's public key; a site signs with its private key what others must believe.

The roster is a JSON file that every site gets out of band, never from the server. Keys are of the curve P-384 in OpenSSH's
form, the ones that SuperNodes authenticate with (`fedloom flower certs`, or `ssh-keygen -t ecdsa -b 384`). A signature covers
a purpose and a JSON value in its one spelling, so that what was signed for one purpose means nothing for another.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedloom.engine.files import write
from fedloom.errors import FedloomError

FORMAT = "fedloom roster 1"
LARGEST = 1 << 26  # bytes of a roster
_SCHEME = ec.ECDSA(hashes.SHA384())


@dataclass(frozen=True)
class Entry:
    """One line of the roster."""

    client: int
    name: str
    key: str  # `ecdsa-sha2-nistp384 AAAA…`, without a comment

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -lf` prints it."""
        hashed = hashlib.sha256(base64.b64decode(self.key.split()[1])).digest()
        return f"SHA256:{base64.b64encode(hashed).decode().rstrip('=')}"


class Roster:
    """The public keys of all sites, by client."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = {entry.client: entry for entry in entries}
        self._keys = {entry.client: public_key(entry.key) for entry in entries}
        if not entries:
            raise FedloomError("roster: it lists no site")
        for what in ("client", "name", "key"):
            value, times = Counter(str(getattr(entry, what)) for entry in entries).most_common(1)[0]
            if times > 1:
                raise FedloomError(f"roster: {what} {value[:80]} stands there twice; every site has its own")

    @property
    def digest(self) -> str:
        """What two sites compare to know that they hold the same roster; names do not count."""
        return _digest({str(entry.client): entry.key for entry in self.entries.values()})

    def verify(self, client: int, purpose: str, content: Any, signature: bytes) -> bool:
        """Whether the site of a client signed this content for this purpose."""
        key = self._keys.get(client)
        if key is None:
            return False
        try:
            key.verify(signature, _text(purpose, content), _SCHEME)
        except InvalidSignature:
            return False
        return True

    def client_of(self, signer: Signer) -> int | None:
        """The client that the roster knows this key as."""
        return next((entry.client for entry in self.entries.values() if entry.key == signer.public), None)

    @classmethod
    def of(cls, keys: Mapping[int, tuple[str, str]]) -> Roster:
        """From names and public keys in OpenSSH's form, by client."""
        return cls([Entry(client, name, _plain(key)) for client, (name, key) in keys.items()])

    @classmethod
    def read(cls, path: str | Path) -> Roster:
        where = Path(path).expanduser()
        try:
            if where.stat().st_size > LARGEST:
                raise FedloomError(f"roster: {where} is larger than {LARGEST >> 20} MB, which no roster is")
            content = json.loads(where.read_text(encoding="utf-8"))
        except OSError as error:
            raise FedloomError(f"roster: cannot read {where}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            if isinstance(error, FedloomError):
                raise
            raise FedloomError(f"roster: {where} is not JSON") from None
        sites = content.get("sites") if isinstance(content, dict) and content.get("format") == FORMAT else None
        if not isinstance(sites, list):
            raise FedloomError(
                f"roster: {where} is no roster; `fedloom flower certs` or `fedloom flower roster` writes one"
            )
        return cls([_entry(item) for item in sites])

    def write(self, path: Path) -> None:
        sites = [{"client": e.client, "name": e.name, "key": e.key} for _, e in sorted(self.entries.items())]
        write(path, json.dumps({"format": FORMAT, "sites": sites}, indent=2) + "\n")


class Signer:
    """A site's private key."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        encoded = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        self.public = _plain(encoded.decode())

    def sign(self, purpose: str, content: Any) -> bytes:
        return self._key.sign(_text(purpose, content), _SCHEME)

    @classmethod
    def read(cls, path: str | Path) -> Signer:
        """Refuses a key that others may read: whoever reads it can sign in the site's name."""
        where = Path(path).expanduser()
        try:
            mode, content = where.stat().st_mode, where.read_bytes()
        except OSError as error:
            raise FedloomError(f"key: cannot read {where}: {error.strerror}") from None
        if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
            raise FedloomError(f"key: {where} can be read by others than its owner; chmod 600 {where}")
        load = (
            serialization.load_ssh_private_key
            if b"OPENSSH PRIVATE KEY" in content
            else serialization.load_pem_private_key
        )
        try:
            key = load(content, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise FedloomError(
                f"key: {where} is no private key without a passphrase in OpenSSH's or PEM form"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp384r1":
            raise FedloomError(f"key: {where} is not of the curve P-384; ssh-keygen -t ecdsa -b 384 makes one that is")
        return cls(key)


def public_key(text: str) -> ec.EllipticCurvePublicKey:
    """A P-384 key in OpenSSH's form."""
    try:
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise FedloomError(f"roster: {text[:40]!r} is no public key in OpenSSH's form") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise FedloomError(f"roster: {text[:40]!r} is not a key of the curve P-384")
    return key


def _entry(item: Any) -> Entry:
    found = item if isinstance(item, dict) else {}
    client, name, key = found.get("client"), found.get("name"), found.get("key")
    if type(client) is not int or not 0 <= client < 2**31 or not isinstance(name, str) or not isinstance(key, str):
        raise FedloomError("roster: a site needs client (a number from 0), name and key")
    if not name.isprintable() or len(name) > 80:
        raise FedloomError(f"roster: the name of client {client} must be printable and at most 80 characters long")
    return Entry(client, name, _plain(key))


def _plain(key: str) -> str:
    """A key's one spelling: without its comment, re-encoded."""
    encoded = public_key(key).public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return encoded.decode()


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _text(purpose: str, content: Any) -> bytes:
    return b"fedloom\n" + purpose.encode() + b"\n" + json.dumps(content, sort_keys=True, allow_nan=False).encode()
