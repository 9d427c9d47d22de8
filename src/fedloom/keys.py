"""Random draws, each from its own generator keyed by (seed, purpose, ...): there is no global random state.

A key is hashed, so neighbouring keys give unrelated streams, and a draw never depends on what was drawn before it,
on which process makes it, or on how many processes there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


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
