"""Datasets as tensors mapped from the cache: opening one takes milliseconds and no memory, in any process."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedloom.data import cache
from fedloom.data.arrays import Content, check, digest, statistics
from fedloom.data.sources import find
from fedloom.data.sources.resize import check_resize, resized
from fedloom.data.sources.source import DataSource
from fedloom.data.spec import InputSpec, Shape
from fedloom.data.transforms.choose import pipeline_of
from fedloom.data.transforms.pipeline import Pipeline
from fedloom.errors import FedloomError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples: inputs, labels, and the groups that they belong to."""

    name: str
    inputs: InputSpec
    train_x: Tensor = field(repr=False)  # N and inputs.stored_shape, of type inputs.dtype
    train_y: Tensor = field(repr=False)  # int64 N, like all tensors below
    test_x: Tensor = field(repr=False)
    test_y: Tensor = field(repr=False)
    classes: int
    class_names: tuple[str, ...] = field(repr=False)
    mean: tuple[float, ...]  # of train_x / scale, per channel of images, or per entry of the features' first axis
    std: tuple[float, ...]  # population standard deviation; 1 for a constant channel
    digest: str
    domain_names: tuple[str, ...] = ()
    train_domain: Tensor | None = field(default=None, repr=False)
    test_domain: Tensor | None = field(default=None, repr=False)
    train_client: Tensor | None = field(default=None, repr=False)  # natural clients, such as writers or hospitals
    test_client: Tensor | None = field(default=None, repr=False)
    client_names: tuple[str, ...] = field(default=(), repr=False)  # given where the data name their clients
    notes: tuple[str, ...] = field(default=(), repr=False)  # what reading the data had to repair, a sentence each

    @property
    def shape(self) -> Shape:
        """Shape of one network input."""
        return self.inputs.shape

    @property
    def scale(self) -> float:
        return self.inputs.scale

    def pipeline(self, normalize: object = "set", augment: str = "none") -> Pipeline:
        return pipeline_of(self.inputs, (self.mean, self.std), self.name, normalize, augment)


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
        client_names=tuple(facts["client_names"]),
        notes=tuple(facts["notes"]),
        inputs=InputSpec.from_json(facts["inputs"]),
        mean=tuple(facts["mean"]),
        std=tuple(facts["std"]),
        digest=facts["digest"],
        **{name: torch.from_numpy(values) for name, values in arrays.items()},
    )


def _build(source: DataSource, side: int | None) -> tuple[Content, cache.Facts]:
    arrays = check(source.where, source.read(side), source.scale)
    if side is not None and arrays.inputs.kind != "image":
        raise FedloomError(f"data.resize: {source.name} holds {arrays.inputs.noun}, not images; leave it out")
    arrays = arrays if side is None else resized(arrays, side)
    mean, std = statistics(arrays, source.standardized)
    facts = {
        "class_names": arrays.class_names,
        "domain_names": arrays.domain_names,
        "client_names": arrays.client_names,
        "notes": arrays.notes,
        "inputs": arrays.inputs.to_json(),
        "mean": mean,
        "std": std,
        "digest": digest(arrays),
    }
    return arrays.present(), facts
