"""Rosters: every site signs with its own key, and nobody signs for another."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason='Flower is not installed: pip install "fedloom[flower]"')

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from fedloom.deploy.keys.certs import make
from fedloom.deploy.keys.roster import Roster, Signer
from fedloom.errors import FedloomError


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make(tmp_path / "keys", ["north", "south"], ["127.0.0.1"])
    return tmp_path / "keys"


def roster_of(keys: Path) -> Roster:
    return Roster.of({k: (name, (keys / f"{name}.pub").read_text()) for k, name in enumerate(("north", "south"))})


def test_a_signature_holds_for_one_site_one_purpose_and_one_content(keys: Path) -> None:
    roster, signer = roster_of(keys), Signer.read(keys / "north.key")
    content = {"round": 3, "keys": ["ab", "cd"]}
    signature = signer.sign("keys", content)
    assert roster.verify(0, "keys", {"keys": ["ab", "cd"], "round": 3}, signature)
    assert roster.client_of(signer) == 0
    assert not roster.verify(1, "keys", content, signature)
    assert not roster.verify(7, "keys", content, signature)
    assert not roster.verify(0, "sum", content, signature)
    assert not roster.verify(0, "keys", {**content, "round": 4}, signature)
    assert not roster.verify(0, "keys", content, b"")
    assert not roster.verify(0, "keys", content, signature[:-1])


def test_a_roster_is_read_as_it_was_written(keys: Path, tmp_path: Path) -> None:
    roster = roster_of(keys)
    roster.write(tmp_path / "roster.json")
    again = Roster.read(tmp_path / "roster.json")
    assert again.entries == roster.entries
    assert again.digest == roster.digest
    other = Roster.of({1: ("north", roster.entries[0].key), 0: ("south", roster.entries[1].key)})
    assert other.digest != roster.digest


def test_fingerprints_are_those_of_openssh(keys: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH is not installed")
    printed = subprocess.run(
        ["ssh-keygen", "-lf", keys / "north.pub"], capture_output=True, text=True, check=True
    ).stdout
    assert roster_of(keys).entries[0].fingerprint in printed


def test_keys_that_ssh_keygen_makes_are_taken(tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH is not installed")
    made = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "a comment", "-f", str(tmp_path / "mine")]
    subprocess.run(made, check=True)
    roster = Roster.of({0: ("mine", (tmp_path / "mine.pub").read_text())})
    assert roster.verify(0, "keys", [1], Signer.read(tmp_path / "mine").sign("keys", [1]))


def _change(keys: Path, change: Any) -> Path:
    path = keys.parent / "roster.json"
    roster_of(keys).write(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def _ed25519() -> str:
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(format="other"), "is not a roster"),
        (lambda c: c.update(sites=[]), "lists no site"),
        (lambda c: c["sites"][1].update(client=0), "client 0 is listed twice"),
        (lambda c: c["sites"][1].update(name="north"), "name north is listed twice"),
        (lambda c: c["sites"][1].update(key=c["sites"][0]["key"] + " comment"), "key ecdsa-sha2-nistp384"),
        (lambda c: c["sites"][0].update(client=-1), "a number from 0"),
        (lambda c: c["sites"][0].update(client=True), "a number from 0"),
        (lambda c: c["sites"][0].pop("key"), "needs client"),
        (lambda c: c["sites"][0].update(name="a\nb"), "printable"),
        (lambda c: c["sites"][0].update(key="ssh-rsa AAAA"), "not a public key"),
        (lambda c: c["sites"][0].update(key=_ed25519()), "not a P-384 key"),
    ],
)
def test_a_bad_roster_is_refused_in_a_sentence(change: Any, words: str, keys: Path) -> None:
    with pytest.raises(FedloomError, match=r"^roster: ") as error:
        Roster.read(_change(keys, change))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_roster_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for content, words in ((b"\xff\xfe", "not JSON"), (b"[" * 100_000, "not JSON"), (b"[]", "is not a roster")):
        (tmp_path / "odd").write_bytes(content)
        with pytest.raises(FedloomError, match=words):
            Roster.read(tmp_path / "odd")
    with pytest.raises(FedloomError, match="cannot read"):
        Roster.read(tmp_path / "missing")


def test_a_private_key_that_others_may_read_is_refused(keys: Path) -> None:
    os.chmod(keys / "north.key", 0o640)
    with pytest.raises(FedloomError, match="can be read by other users; chmod 600"):
        Signer.read(keys / "north.key")


def test_a_key_of_another_kind_is_refused(keys: Path, tmp_path: Path) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    pem = other.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for name, content, words in (("curve", pem, "not a P-384 key"), ("text", b"hello", "not a private key")):
        (tmp_path / name).write_bytes(content)
        os.chmod(tmp_path / name, 0o600)
        with pytest.raises(FedloomError, match=words):
            Signer.read(tmp_path / name)
    with pytest.raises(FedloomError, match="cannot read"):
        Signer.read(tmp_path / "missing")
