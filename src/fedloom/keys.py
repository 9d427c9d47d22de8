"""Random draws, each from its own generator keyed by (seed, purpose, ...): there is no global random state.

A key is hashed, so neighbouring keys give unrelated streams, and a draw never depends on what was drawn before it,
on which process makes it, or on how many processes there are.

One kind of draw must not repeat: noise that hides something on real machines, where everybody knows the seed. It comes from
the operating system (`secret_normal`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

PIECE = 1 << 20  # numbers of secret noise that are made at a time


def key(seed: int, *purpose: str | int) -> int:
    """A 63-bit number that stands for this seed and purpose and no other."""
    text = "/".join(str(item) for item in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def torch_generator(seed: int, *purpose: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(key(seed, *purpose))


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(key(seed, *purpose)))


@contextmanager
def seeded(seed: int, *purpose: str | int) -> Iterator[None]:
    """Torch's default generator starts from this key inside the block and is put back after it.

    For code that takes no generator: the constructors of layers, dropout inside a forward pass.
    """
    state = torch.random.get_rng_state()
    torch.default_generator.manual_seed(key(seed, *purpose))
    try:
        yield
    finally:
        torch.random.set_rng_state(state)


def secret_normal(count: int) -> torch.Tensor:
    """Standard normal numbers that nobody can compute again: Box and Muller's, in double, of random bytes of the system.

    torch's own generator would not do, however it is seeded: 32 bits of the seed decide all that it draws.
    """
    found = np.empty(count, dtype=np.float32)
    for begin in range(0, count, PIECE):
        piece = found[begin : begin + PIECE]
        pairs = (len(piece) + 1) // 2
        bits = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64).reshape(2, pairs)
        even = ((bits >> np.uint64(11)) + 0.5) * 2.0**-53  # within (0, 1), both ends out of reach
        far, angle = np.sqrt(-2 * np.log(even[0])), 2 * np.pi * even[1]
        piece[:pairs], piece[pairs:] = far * np.cos(angle), (far * np.sin(angle))[: len(piece) - pairs]
    return torch.from_numpy(found)
