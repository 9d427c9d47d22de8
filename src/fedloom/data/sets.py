"""Image sets as uint8 tensors mapped from the cache: opening one costs milliseconds and no memory, in any process."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedloom.data import cache
from fedloom.data.arrays import Content, check, digest, statistics
from fedloom.data.resize import check_resize, resized
from fedloom.data.sources import find, named
from fedloom.data.sources.npz import outline
from fedloom.data.sources.ready import READY
from fedloom.data.sources.source import Source


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Training and test images; inputs of a network are x / scale, then normalised."""

    name: str
    train_x: Tensor = field(repr=False)  # uint8 N,H,W,C
    train_y: Tensor = field(repr=False)  # int64 N, as all that follow
    test_x: Tensor = field(repr=False)
    test_y: Tensor = field(repr=False)
    classes: int
    class_names: tuple[str, ...] = field(repr=False)
    scale: float
    mean: tuple[float, ...]  # of train_x / scale, by channel
    std: tuple[float, ...]  # population deviation; 1 where a channel is constant
    digest: str
    domain_names: tuple[str, ...] = ()
    train_domain: Tensor | None = field(default=None, repr=False)
    test_domain: Tensor | None = field(default=None, repr=False)
    train_writer: Tensor | None = field(default=None, repr=False)
    test_writer: Tensor | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image as a network sees it: channels, height, width."""
        _, height, width, channels = self.train_x.shape
        return channels, height, width


def load(source: str, resize: int | None = None) -> ImageSet:
    """The set that a recipe's `data` names: digits, NAME, PATH.npz, folder:PATH or hf:owner/name."""
    side = check_resize(resize)
    found = find(source)
    folder = cache.folder_of(found.name, str(side), *found.identity)
    arrays, facts = cache.fetch(folder, lambda: _build(found, side))
    return ImageSet(
        name=found.name,
        classes=len(facts["class_names"]),
        class_names=tuple(facts["class_names"]),
        domain_names=tuple(facts["domain_names"]),
        scale=facts["scale"],
        mean=tuple(facts["mean"]),
        std=tuple(facts["std"]),
        digest=facts["digest"],
        **{name: torch.from_numpy(values) for name, values in arrays.items()},
    )


def list_sets() -> list[dict[str, str]]:
    """What `data` can be: name, one line, and where it comes from: a file in $FEDLOOM_DATA, or the hub."""
    bundled = "1797 handwritten digits, 8 x 8, bundled with scikit-learn; every fifth image is test"
    forms = {
        "PATH.npz": "any npz file with train_x, train_y, test_x, test_y as uint8 N,H,W,C",
        "folder:PATH": "pictures in PATH/train/CLASS/ and PATH/test/CLASS/, or PATH/CLASS/; DOMAIN/CLASS/ likewise",
        "hf:owner/name": 'a set of the Hugging Face hub, or hf:PATH; needs pip install "fedloom[hub]"',
    }
    here = named()
    files = [{"name": name, "summary": outline(path), "file": str(path)} for name, path in here.items()]
    files += [
        {"name": name, "summary": known.summary, "file": f"hf:{known.repository}"}
        for name, known in READY.items()
        if name not in here
    ]
    others = [{"name": name, "summary": summary, "file": ""} for name, summary in forms.items()]
    return [{"name": "digits", "summary": bundled, "file": ""}, *files, *others]


def _build(source: Source, side: int | None) -> tuple[Content, cache.Facts]:
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
