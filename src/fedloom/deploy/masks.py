"""Masks that cancel: every pair of nodes agrees on a stream of numbers that one adds and the other subtracts.

This is SecAgg+ (Bell et al. 2020) as Flower does it: the keys, their agreement, their shares and the encryption are Flower's.
The streams are not. Flower 1.41 draws them from numpy's Mersenne Twister, whose seed is a key folded to 32 bits (28 for a
pair's key, which is folded as base64 text): few enough to try them all. Here a stream is ChaCha20 under the whole key.
All sums are modulo 2^32, which is what unsigned numbers of 32 bits do by themselves.
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
from numpy.typing import NDArray

Numbers = NDArray[np.uint32]


def stream(secret: bytes, length: int) -> Numbers:
    """Numbers that nobody can tell from random ones without the secret, which is used for one stream only."""
    key = HKDF(hashes.SHA256(), 32, salt=None, info=b"fedloom mask").derive(secret)
    numbers = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(4 * length))
    return np.frombuffer(numbers, dtype="<u4").astype(np.uint32)


def masked(vector: Numbers, seed: bytes, node: int, private: bytes, others: Mapping[int, bytes]) -> Numbers:
    """A vector under the node's own mask and one for each other node, of which the public key is given."""
    total = vector + stream(seed, len(vector))
    for other, public in others.items():
        total += _between(node, private, other, public, len(vector))
    return total


def unmasked(
    total: Numbers, seeds: Iterable[bytes], dropped: Iterable[tuple[int, bytes, Mapping[int, bytes]]]
) -> Numbers:
    """A sum of masked vectors without the masks: own ones by their seeds, and what nodes that dropped out would have cancelled,
    each by its number, its private key, and the public keys of those in the sum who masked for it."""
    total = total.copy()
    for seed in seeds:
        total -= stream(seed, len(total))
    for node, private, others in dropped:
        for other, public in others.items():
            total += _between(node, private, other, public, len(total))
    return total


def _between(node: int, private: bytes, other: int, public: bytes, length: int) -> Numbers:
    """What a node adds for a pair: the stream if its number is the larger one, else what cancels it."""
    numbers = stream(generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public)), length)
    return numbers if node > other else np.uint32(0) - numbers
