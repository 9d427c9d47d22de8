"""A split on its own: made, stored, read again, measured and looked at, without any training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from fedloom.data import Holding, ImageSet, Partition, load, stages
from fedloom.data.splits.partition import notes
from fedloom.data.splits.strength import Strength, strength
from fedloom.engine.folder import RunFolder
from fedloom.engine.setup import about, hold_back
from fedloom.errors import FedloomError
from fedloom.recipe import Recipe, recipe


@dataclass(frozen=True)
class Split:
    """Who holds and sees which images of a set: one stage, or several if it changes on the way."""

    images: ImageSet
    data: str
    spec: str
    seed: int
    stages: tuple[Holding, ...]

    @property
    def clients(self) -> int:
        return self.partition.clients

    @property
    def partition(self) -> Partition:
        """Of the first stage."""
        return self.stages[0].partition

    def strength(self, stage: int = 0) -> Strength:
        """How strongly clients disagree, in numbers."""
        return strength(self.stages[stage])

    def pictures(self, client: int, part: Literal["train", "test"] = "train", stage: int = 0) -> tuple[Tensor, Tensor]:
        """Images N,H,W,C (0 to the set's scale) and labels as this client sees them."""
        seen = self.stages[stage].train(client) if part == "train" else self.stages[stage].test(client)
        return seen.x[seen.rows], seen.y

    def save(self, path: str | Path) -> list[Path]:
        """One npz file a stage: path, then path-30 for a stage that begins in round 30."""
        path = Path(path)
        if path.suffix != ".npz":
            raise FedloomError(f"output: {path} must end in .npz")
        told = {"data": self.data, "data_digest": self.images.digest, "split": self.spec, "seed": str(self.seed)}
        written = []
        for holding in self.stages:
            place = path if holding.begin == 1 else path.with_stem(f"{path.stem}-{holding.begin}")
            changes = "+".join(str(change) for change in holding.changes)
            try:
                holding.partition.save(place, **told, changes=changes)
            except OSError as error:
                raise FedloomError(f"output: {place} cannot be written ({error.strerror})") from None
            written.append(place)
        return written


def make_split(fields: Mapping[str, Any]) -> Split:
    """The split that a run with these fields of a recipe has."""
    given = recipe(fields)
    with about("data"):
        images = load(given.data.name, given.data.resize)
    return _split(given, images)


def read_split(source: str | Path, fields: Mapping[str, Any]) -> Split:
    """A split from a run folder, or from a stored file; the file knows its data, changes and seed unless the fields say
    otherwise."""
    path = Path(source)
    if path.is_dir():
        if fields:
            raise FedloomError(f"from: {path} is a run with a recipe of its own; leave out {next(iter(fields))}")
        folder = RunFolder(path)
        given = folder.recipe()
        with about("data"):
            images = load(given.data.name, given.data.resize)
        return _split(given, images, folder.partitions(images))
    if extra := sorted({"split", "clients"} & fields.keys()):
        raise FedloomError(f"from: {path} says who holds what; leave out {extra[0]}")
    told = notes(path)
    partition = Partition.load(path)
    known: dict[str, Any] = {name: told[name] for name in ("data", "seed") if name in told}
    spec = f"file:{path}" + (f"+{told['changes']}" if told.get("changes") else "")
    given = recipe({**known, **fields, "split": spec, "clients": partition.clients})
    with about("data"):
        images = load(given.data.name, given.data.resize)
    return _split(given, images)


def _split(given: Recipe, images: ImageSet, known: list[Partition] | None = None) -> Split:
    pool, _, public = hold_back(images, given)
    further = public if given.data.public_to_clients else None
    with about("split"):
        found = stages(given.split, images, given.clients, given.seed, pool, known or (), further)
    return Split(images, given.data.name, given.split, given.seed, found)
