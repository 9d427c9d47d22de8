"""Masks that cancel: every pair of nodes agrees on a stream of numbers that one adds and the other subtracts.

This is SecAgg+ (Bell et al. 2020) as in Flower: the keys, their agreement, their shares and the encryption are Flower's.
The streams are not. Flower 1.41 draws them from numpy's Mersenne Twister, seeded with a key that is folded to 32 bits (28 for
the key of a pair, which is folded as base64 text): an attacker can try all seeds. Here a stream is ChaCha20 under the whole
key. All sums are modulo 2^32, as uint32 arithmetic is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

from fedloom.deploy.secagg.encoding import Numbers


def stream(secret: bytes, length: int) -> Numbers:
    """Numbers that are indistinguishable from random ones without the secret, which must be used for one stream only."""
    key = HKDF(hashes.SHA256(), 32, salt=None, info=b"fedloom mask").derive(secret)
    numbers = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(4 * length))
    return np.frombuffer(numbers, dtype="<u4").astype(np.uint32)


def masked(vector: Numbers, seed: bytes, node: int, private: bytes, others: Mapping[int, bytes]) -> Numbers:
    """A vector plus the node's own mask and one mask for each other node, whose public keys are given."""
    total = vector + stream(seed, len(vector))
    for other, public in others.items():
        total += _between(node, private, other, public, len(vector))
    return total


def unmasked(
    total: Numbers, seeds: Iterable[bytes], dropped: Iterable[tuple[int, bytes, Mapping[int, bytes]]]
) -> Numbers:
    """Remove the masks from a sum of masked vectors.

    `seeds`: of the own masks. `dropped`: nodes whose pairwise masks did not cancel, each with its id, its private key and the
    public keys of the nodes in the sum that masked for it.
    """
    total = total.copy()
    for seed in seeds:
        total -= stream(seed, len(total))
    for node, private, others in dropped:
        for other, public in others.items():
            total += _between(node, private, other, public, len(total))
    return total


def _between(node: int, private: bytes, other: int, public: bytes, length: int) -> Numbers:
    """The pairwise mask that a node adds: the stream if its id is the larger one, otherwise its negative."""
    numbers = stream(generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public)), length)
    return numbers if node > other else np.uint32(0) - numbers
