"""A federation whose images lie at its sites: what the server knows of them, and what stands for the images there."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedloom.data import ImageSet, Partition
from fedloom.data.splits.partition import offsets_of
from fedloom.errors import FedloomError

Where = Literal["split", "sites"]  # every node takes its share of the recipe's data | every node has data of its own


@dataclass(frozen=True)
class Sites:
    """Written into the run folder when the federation begins; it is the same after every resume."""

    federation: str  # names this run to the nodes, which keep their memory under it
    data: Where
    shape: tuple[int, int, int]  # channels, height, width
    class_names: tuple[str, ...]
    scale: float
    test: str | None = None  # the server's own test images, if it has any

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Sites | None:
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{**found, "shape": tuple(found["shape"]), "class_names": tuple(found["class_names"])})
        except (ValueError, TypeError, KeyError) as error:
            raise FedloomError(f"{path} is damaged ({error})") from None

    def images(self, tested: ImageSet | None = None) -> ImageSet:
        """No training images; the server's own test images, or none."""
        channels, height, width = self.shape
        none_x, none_y = torch.empty((0, height, width, channels), dtype=torch.uint8), torch.empty(0, dtype=torch.int64)
        identity = f"{self.shape} {self.class_names} {self.scale}"
        blank = ImageSet(
            name="sites",
            train_x=none_x,
            train_y=none_y,
            test_x=none_x,
            test_y=none_y,
            classes=len(self.class_names),
            class_names=self.class_names,
            scale=self.scale,
            mean=(),
            std=(),
            digest="sites-" + hashlib.sha256(identity.encode()).hexdigest()[:16],
        )
        if tested is None:
            return blank
        found = fitted(tested, self)
        return replace(blank, test_x=found.test_x, test_y=found.test_y)


def fitted(images: ImageSet, sites: Sites) -> ImageSet:
    """A site's own images under the federation's class numbers and scale, or a sentence about what does not fit."""
    if images.shape != sites.shape:
        raise FedloomError(f"its images are {_by(images.shape)}, those of the federation {_by(sites.shape)}")
    if unknown := [name for name in images.class_names if name not in sites.class_names]:
        raise FedloomError(
            f"it has the class {unknown[0]!r}; the federation knows {', '.join(sites.class_names[:20])}"
            + (", …" if len(sites.class_names) > 20 else "")
        )
    number = torch.tensor([sites.class_names.index(name) for name in images.class_names], dtype=torch.int64)
    return replace(
        images,
        train_y=number[images.train_y],
        test_y=number[images.test_y],
        classes=len(sites.class_names),
        class_names=sites.class_names,
        scale=sites.scale,
    )


def joined_names(sites: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The classes of all sites in one order: numbers by value, names by alphabet."""
    names = {name for site in sites for name in site}
    plain = all(name.isdecimal() for name in names)
    return tuple(sorted(names, key=(lambda name: int(name)) if plain else None))


def sized(train: list[int], test: list[int]) -> Partition:
    """Who holds how many, where the images are elsewhere."""
    offsets = offsets_of(np.array(train)), offsets_of(np.array(test))
    return Partition(np.arange(offsets[0][-1]), offsets[0], np.arange(offsets[1][-1]), offsets[1])


def alone(client: int, clients: int, images: ImageSet) -> Partition:
    """One client holds all images that are here, the others none."""
    counts = np.zeros((2, clients), dtype=np.int64)
    counts[:, client] = len(images.train_y), len(images.test_y)
    return sized(counts[0].tolist(), counts[1].tolist())


def _by(shape: tuple[int, int, int]) -> str:
    return f"{shape[1]} x {shape[2]} with {shape[0]} channels"
