"""Small image sets with classes, domains and writers."""

from __future__ import annotations

import numpy as np
import torch

from fedloom.data import Dataset, InputSpec
from fedloom.rng import numpy_generator


def made_set(
    train: list[int],
    test: list[int],
    *,
    seed: int = 0,
    shape: tuple[int, int, int] = (1, 1, 1),
    domains: int = 0,
    writers: int = 0,
    scale: float = 255.0,
) -> Dataset:
    """Random images in random order; `train` and `test`: images of each class. Domains and writers are random."""
    random = numpy_generator(seed, "making")
    fields = {}
    for part, counts in (("train", train), ("test", test)):
        y = random.permutation(np.repeat(np.arange(len(counts)), counts))
        fields[f"{part}_y"] = torch.from_numpy(y)
        pixels = random.integers(0, int(scale) + 1, (len(y), *shape), dtype=np.uint8)
        fields[f"{part}_x"] = torch.from_numpy(pixels)
        for kind, count in (("domain", domains), ("client", writers)):
            if count:  # each at least once
                drawn = np.concatenate([np.arange(count), random.integers(0, count, len(y) - count)])
                fields[f"{part}_{kind}"] = torch.from_numpy(random.permutation(drawn))
    return Dataset(
        name="made",
        classes=len(train),
        class_names=tuple(f"c{k}" for k in range(len(train))),
        domain_names=tuple(f"d{k}" for k in range(domains)),
        inputs=InputSpec.image((shape[2], *shape[:2]), scale),
        mean=(0.0,) * shape[2],
        std=(1.0,) * shape[2],
        digest="made",
        **fields,
    )
