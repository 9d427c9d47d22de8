"""Datasets as uint8 tensors mapped from the cache: opening one takes milliseconds and no memory, in any process."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedloom.data import cache
from fedloom.data.arrays import Content, check, digest, statistics
from fedloom.data.sources import find
from fedloom.data.sources.resize import check_resize, resized
from fedloom.data.sources.source import DataSource


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples; inputs of a network are x / scale, then normalized."""

    name: str
    train_x: Tensor = field(repr=False)  # uint8 N,H,W,C
    train_y: Tensor = field(repr=False)  # int64 N, like all tensors below
    test_x: Tensor = field(repr=False)
    test_y: Tensor = field(repr=False)
    classes: int
    class_names: tuple[str, ...] = field(repr=False)
    scale: float
    mean: tuple[float, ...]  # of train_x / scale, per channel
    std: tuple[float, ...]  # population standard deviation; 1 for a constant channel
    digest: str
    domain_names: tuple[str, ...] = ()
    train_domain: Tensor | None = field(default=None, repr=False)
    test_domain: Tensor | None = field(default=None, repr=False)
    train_writer: Tensor | None = field(default=None, repr=False)
    test_writer: Tensor | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one network input: channels, height, width."""
        _, height, width, channels = self.train_x.shape
        return channels, height, width


def load(source: str, resize: int | None = None) -> Dataset:
    """The dataset that `data` in a recipe names: digits, NAME, PATH.npz, folder:PATH, hf:owner/name and so on."""
    side = check_resize(resize)
    opened = find(source)
    folder = cache.folder_of(opened.name, str(side), *opened.identity)
    arrays, facts = cache.fetch(folder, lambda: _build(opened, side))
    return Dataset(
        name=opened.name,
        classes=len(facts["class_names"]),
        class_names=tuple(facts["class_names"]),
        domain_names=tuple(facts["domain_names"]),
        scale=facts["scale"],
        mean=tuple(facts["mean"]),
        std=tuple(facts["std"]),
        digest=facts["digest"],
        **{name: torch.from_numpy(values) for name, values in arrays.items()},
    )


def _build(source: DataSource, side: int | None) -> tuple[Content, cache.Facts]:
    arrays = check(source.where, source.read(side))
    arrays = arrays if side is None else resized(arrays, side)
    mean, std = statistics(arrays.train_x, source.scale)
    facts = {
        "class_names": arrays.class_names,
        "domain_names": arrays.domain_names,
        "scale": source.scale,
        "mean": mean,
        "std": std,
        "digest": digest(arrays, source.scale),
    }
    return arrays.present(), facts
