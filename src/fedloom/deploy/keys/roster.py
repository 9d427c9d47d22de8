"""The roster lists every site's public key; with its private key a site signs what other sites must be able to trust.

The roster is a JSON file that every site gets out of band, never from the server. Keys are P-384 keys in OpenSSH format, as
SuperNodes use them to authenticate (`fedloom flower certs`, or `ssh-keygen -t ecdsa -b 384`). A signature covers a purpose and
a JSON value with sorted keys, so a signature for one purpose is not valid for another.
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

from fedloom.errors import FedloomError
from fedloom.io.files import write

FORMAT = "fedloom roster 1"
MAX_BYTES = 1 << 26  # of a roster file
_SCHEME = ec.ECDSA(hashes.SHA384())


@dataclass(frozen=True)
class RosterEntry:
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

    def __init__(self, entries: Sequence[RosterEntry]) -> None:
        self.entries = {entry.client: entry for entry in entries}
        self._keys = {entry.client: public_key(entry.key) for entry in entries}
        if not entries:
            raise FedloomError("roster: it lists no site")
        for what in ("client", "name", "key"):
            value, times = Counter(str(getattr(entry, what)) for entry in entries).most_common(1)[0]
            if times > 1:
                raise FedloomError(f"roster: {what} {value[:80]} is listed twice; every site has its own")

    @property
    def digest(self) -> str:
        """Two sites compare it to know that they have the same roster; names are not part of it."""
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
        """The client that the roster lists this key for."""
        return next((entry.client for entry in self.entries.values() if entry.key == signer.public), None)

    @classmethod
    def of(cls, keys: Mapping[int, tuple[str, str]]) -> Roster:
        """From names and public keys in OpenSSH format, by client."""
        return cls([RosterEntry(client, name, _normalized(key)) for client, (name, key) in keys.items()])

    @classmethod
    def read(cls, path: str | Path) -> Roster:
        where = Path(path).expanduser()
        try:
            if where.stat().st_size > MAX_BYTES:
                raise FedloomError(f"roster: {where} is larger than {MAX_BYTES >> 20} MB, the limit for a roster")
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
                f"roster: {where} is not a roster; `fedloom flower certs` or `fedloom flower roster` writes one"
            )
        return cls([_entry(item) for item in sites])

    def to_json(self) -> str:
        sites = [{"client": e.client, "name": e.name, "key": e.key} for _, e in sorted(self.entries.items())]
        return json.dumps({"format": FORMAT, "sites": sites}, indent=2) + "\n"

    def write(self, path: Path) -> None:
        write(path, self.to_json())


class Signer:
    """A site's private key."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        encoded = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        self.public = _normalized(encoded.decode())

    def sign(self, purpose: str, content: Any) -> bytes:
        return self._key.sign(_text(purpose, content), _SCHEME)

    @classmethod
    def read(cls, path: str | Path) -> Signer:
        """Refuses a key file that other users can read: they could sign in the name of the site."""
        where = Path(path).expanduser()
        try:
            mode, content = where.stat().st_mode, where.read_bytes()
        except OSError as error:
            raise FedloomError(f"key: cannot read {where}: {error.strerror}") from None
        if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
            raise FedloomError(f"key: {where} can be read by other users; chmod 600 {where}")
        load = (
            serialization.load_ssh_private_key
            if b"OPENSSH PRIVATE KEY" in content
            else serialization.load_pem_private_key
        )
        try:
            key = load(content, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise FedloomError(
                f"key: {where} is not a private key in OpenSSH or PEM format without a passphrase"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp384r1":
            raise FedloomError(f"key: {where} is not a P-384 key; make one with ssh-keygen -t ecdsa -b 384")
        return cls(key)


def check(path: Path, keys: Sequence[Path]) -> list[str]:
    """Lines that say what a roster lists and whose private keys these are. A key that it does not list is an error."""
    roster = Roster.read(path)
    lines = [f"client {client}: {entry.name} {entry.fingerprint}" for client, entry in sorted(roster.entries.items())]
    owners: dict[int, Path] = {}
    for key in keys:
        client = roster.client_of(Signer.read(key))
        if client is None:
            raise FedloomError(f"key: {key} belongs to no client of {path}")
        if client in owners:
            raise FedloomError(f"key: {key} and {owners[client]} are the same key, of client {client}")
        owners[client] = key
        lines.append(f"{key}: the key of client {client}, readable by its owner alone")
    return [*lines, f"roster {roster.digest}"]


def write_roster(path: Path, keys: Sequence[Path]) -> list[str]:
    """Write a roster of the sites' own public keys, client 0 first; returns the lines of `check`."""
    if path.exists():
        raise FedloomError(f"ROSTER: {path} exists already; rosters are never overwritten")
    listed = {}
    for client, key in enumerate(keys):
        try:
            listed[client] = key.stem, key.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            raise FedloomError(f"key: cannot read {key}: {reason}") from None
    Roster.of(listed).write(path)
    return check(path, [])


def public_key(text: str) -> ec.EllipticCurvePublicKey:
    """A P-384 key in OpenSSH format."""
    try:
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise FedloomError(f"roster: {text[:40]!r} is not a public key in OpenSSH format") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise FedloomError(f"roster: {text[:40]!r} is not a P-384 key")
    return key


def _entry(item: Any) -> RosterEntry:
    entry = item if isinstance(item, dict) else {}
    client, name, key = entry.get("client"), entry.get("name"), entry.get("key")
    if type(client) is not int or not 0 <= client < 2**31 or not isinstance(name, str) or not isinstance(key, str):
        raise FedloomError("roster: a site needs client (a number from 0), name and key")
    if not name.isprintable() or len(name) > 80:
        raise FedloomError(f"roster: the name of client {client} must be printable and at most 80 characters long")
    return RosterEntry(client, name, _normalized(key))


def _normalized(key: str) -> str:
    """A key without its comment, re-encoded, so that equal keys are equal strings."""
    encoded = public_key(key).public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return encoded.decode()


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _text(purpose: str, content: Any) -> bytes:
    return b"fedloom\n" + purpose.encode() + b"\n" + json.dumps(content, sort_keys=True, allow_nan=False).encode()
