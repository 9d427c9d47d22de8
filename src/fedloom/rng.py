"""Random generators keyed by (seed, purpose, ...): there is no global random state.

Keys are hashed, so similar keys give independent streams. A draw does not depend on earlier draws, on the process that makes
it, or on the number of processes.

One kind of draw must not be reproducible: privacy noise in a deployment, where everyone knows the seed. It comes from the
operating system (`secret_normal`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

BLOCK = 1 << 20  # numbers of secret noise drawn at a time


def key(seed: int, *purpose: str | int) -> int:
    """A 63-bit hash of seed and purpose."""
    text = "/".join(str(item) for item in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def torch_generator(seed: int, *purpose: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(key(seed, *purpose))


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(key(seed, *purpose)))


@contextmanager
def seeded(seed: int, *purpose: str | int) -> Iterator[None]:
    """Seed torch's default generator inside the block, and restore it afterwards.

    For code that takes no generator: constructors of layers, dropout in a forward pass.
    """
    state = torch.random.get_rng_state()
    torch.default_generator.manual_seed(key(seed, *purpose))
    try:
        yield
    finally:
        torch.random.set_rng_state(state)


def secret_normal(count: int) -> torch.Tensor:
    """Standard normal numbers that cannot be reproduced: Box-Muller, in double precision, from the system's random bytes.

    torch's generator is not secure, however it is seeded: 32 bits of the seed determine all its draws.
    """
    noise = np.empty(count, dtype=np.float32)
    for begin in range(0, count, BLOCK):
        block = noise[begin : begin + BLOCK]
        pairs = (len(block) + 1) // 2
        bits = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64).reshape(2, pairs)
        uniform = ((bits >> np.uint64(11)) + 0.5) * 2.0**-53  # in (0, 1), both ends excluded
        radius, angle = np.sqrt(-2 * np.log(uniform[0])), 2 * np.pi * uniform[1]
        block[:pairs], block[pairs:] = radius * np.cos(angle), (radius * np.sin(angle))[: len(block) - pairs]
    return torch.from_numpy(noise)
