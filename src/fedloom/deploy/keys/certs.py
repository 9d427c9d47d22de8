"""`fedloom flower certs`: a certificate authority, a server certificate, a key for each node and their roster, for a trial.

In the formats of Flower 1.41: PEM files for TLS, and for SuperNode authentication one P-384 private key per node in OpenSSH
format, whose public key is registered at the SuperLink. The roster lists the public keys by client; with it, sites can verify
each other's signatures (`roster.py`).
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedloom.deploy.keys.roster import Roster
from fedloom.errors import FedloomError
from fedloom.io.files import write

DAYS = 365


def make(folder: Path, nodes: Sequence[str], hosts: Sequence[str]) -> list[Path]:
    """Write all keys and certificates; only their owner can read the private ones."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedloomError(f"DIR: {folder} exists already and is not empty; keys are never overwritten")
    pem, ssh = serialization.Encoding.PEM, serialization.Encoding.OpenSSH
    plain = serialization.NoEncryption()
    now = datetime.datetime.now(datetime.UTC)

    def key_pem(key: Any) -> bytes:
        return bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))

    def certificate(subject: str, key: Any, issuer: str, by: Any, extensions: Sequence[tuple[Any, bool]]) -> Any:
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(subject))
            .issuer_name(_name(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=DAYS))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(by, hashes.SHA256())

    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    root = "fedloom trial authority"
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root_certificate = certificate(
        root,
        authority,
        root,
        authority,
        [(x509.BasicConstraints(ca=True, path_length=0), True), (_usage(True), True), (authority_id, False)],
    )
    server_certificate = certificate(
        hosts[0],
        server,
        root,
        authority,
        [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.SubjectAlternativeName([_host(host) for host in hosts]), False),
            (_usage(False), True),
            (x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False),
        ],
    )
    files: dict[str, bytes] = {
        "ca.crt": root_certificate.public_bytes(pem),
        "ca.key": key_pem(authority),
        "server.pem": server_certificate.public_bytes(pem),
        "server.key": key_pem(server),
    }
    listed = {}
    for client, node in enumerate(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        files[f"{node}.key"] = key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, plain)
        files[f"{node}.pub"] = key.public_key().public_bytes(ssh, serialization.PublicFormat.OpenSSH) + b"\n"
        listed[client] = node, files[f"{node}.pub"].decode()
    files["roster.json"] = Roster.of(listed).to_json().encode()
    mask = os.umask(0o077)
    try:
        for name, content in files.items():
            write(folder / name, content)
            if not name.endswith(".key"):
                os.chmod(folder / name, 0o644)
    finally:
        os.umask(mask)
    return [folder / name for name in files]


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
