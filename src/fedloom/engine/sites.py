"""A federation whose samples stay at its sites: what the server knows of them, and empty placeholders for the samples."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedloom.data import Dataset, InputSpec, Partition
from fedloom.data.partition.partition import offsets_of
from fedloom.errors import FedloomError

Where = Literal["split", "sites"]  # each node uses its share of the recipe's data | each node has its own data


@dataclass(frozen=True)
class Sites:
    """Written into the run folder when the federation starts; never changed by a resume."""

    federation: str  # the name under which nodes keep their state of this run
    data: Where
    inputs: InputSpec
    class_names: tuple[str, ...]
    test: str | None = None  # the server's own test samples, if it has any

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Sites | None:
        if not path.exists():
            return None
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if "inputs" not in stored:  # of images, as they were stored before other kinds
                stored["inputs"] = InputSpec.image(stored.pop("shape"), stored.pop("scale")).to_json()
            inputs = InputSpec.from_json(stored["inputs"])
            return cls(**{**stored, "inputs": inputs, "class_names": tuple(stored["class_names"])})
        except (ValueError, TypeError, KeyError) as error:
            raise FedloomError(f"{path} is damaged ({error})") from None

    def dataset(self, tested: Dataset | None = None) -> Dataset:
        """A data set without training samples, and with the server's own test samples if it has any."""
        inputs = self.inputs
        none_x = torch.empty((0, *inputs.stored_shape), dtype=getattr(torch, inputs.dtype))
        none_y = torch.empty(0, dtype=torch.int64)
        identity = (
            f"{inputs.shape} {self.class_names} {inputs.scale}"  # alone for images of uint8: digests on record stay
        )
        if inputs.dtype != "uint8":
            identity = f"{inputs.kind} {identity} {inputs.vocabulary} {inputs.padding}"
        channels = 1 if inputs.kind == "tokens" else inputs.shape[0]
        blank = Dataset(
            name="sites",
            inputs=self.inputs,
            train_x=none_x,
            train_y=none_y,
            test_x=none_x,
            test_y=none_y,
            classes=len(self.class_names),
            class_names=self.class_names,
            # unknown and unused: data.normalize is none or two lists where sites keep their data
            mean=(0.0,) * channels,
            std=(1.0,) * channels,
            digest="sites-" + hashlib.sha256(identity.encode()).hexdigest()[:16],
        )
        if tested is None:
            return blank
        own = fitted(tested, self)
        return replace(blank, test_x=own.test_x, test_y=own.test_y)


def fitted(dataset: Dataset, sites: Sites) -> Dataset:
    """A site's own samples with the federation's class numbers and scale; refuses samples that do not fit."""
    own, wanted = dataset.inputs, sites.inputs
    if (own.kind, own.dtype, own.shape) != (wanted.kind, wanted.dtype, wanted.shape):
        raise FedloomError(f"it has {own} ({own.dtype}), and the federation {wanted} ({wanted.dtype})")
    if own.vocabulary > wanted.vocabulary or (own.kind == "tokens" and own.padding != wanted.padding):
        raise FedloomError(
            f"it has {own.vocabulary} tokens, padded with {own.padding}, and the federation {wanted.vocabulary}, padded "
            f"with {wanted.padding}"
        )
    if unknown := [name for name in dataset.class_names if name not in sites.class_names]:
        raise FedloomError(
            f"it has the class {unknown[0]!r}; the federation knows {', '.join(sites.class_names[:20])}"
            + (", …" if len(sites.class_names) > 20 else "")
        )
    number = torch.tensor([sites.class_names.index(name) for name in dataset.class_names], dtype=torch.int64)
    return replace(
        dataset,
        train_y=number[dataset.train_y],
        test_y=number[dataset.test_y],
        classes=len(sites.class_names),
        class_names=sites.class_names,
        inputs=sites.inputs,
    )


def joined_names(sites: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The classes of all sites in one order: numbers by value, names alphabetically."""
    names = {name for site in sites for name in site}
    plain = all(name.isdecimal() for name in names)
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if plain else None))


@dataclass(frozen=True, eq=False)
class Counted(Partition):
    """A partition that knows only how many samples each client has, because the samples are at the sites.

    Every index is -1, broadcast from a single number, so the size that a site claims costs no memory here. The file's index
    arrays are empty.
    """

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            offsets = np.asarray(getattr(self, f"{part}_offsets"))
            if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) != len(self.train_offsets):
                raise FedloomError(f"partition: {part}_offsets is not a list of integers, one more than clients")
            if len(offsets) < 2 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
                raise FedloomError(f"partition: {part}_offsets must rise from 0")
            object.__setattr__(self, f"{part}_offsets", np.ascontiguousarray(offsets, dtype=np.int64))
            object.__setattr__(self, f"{part}_index", np.broadcast_to(np.int64(-1), int(offsets[-1])))

    @classmethod
    def of(cls, train_offsets: np.ndarray, test_offsets: np.ndarray) -> Counted:
        nothing = np.empty(0, dtype=np.int64)
        return cls(nothing, train_offsets, nothing, test_offsets)

    def arrays(self) -> dict[str, np.ndarray]:
        nothing = np.empty(0, dtype=np.int64)
        return {**super().arrays(), "train_index": nothing, "test_index": nothing}

    @classmethod
    def load(cls, path: str | Path, dataset: Dataset | None = None) -> Counted:
        try:
            with Path(path).open("rb") as file:
                archive = np.load(file, allow_pickle=False)
                return cls.of(archive["train_offsets"], archive["test_offsets"])
        except FedloomError as error:
            raise FedloomError(f"{path}: {error}") from error
        except (OSError, EOFError, ValueError, KeyError, IndexError, zipfile.BadZipFile, zlib.error) as error:
            raise FedloomError(f"{path} is not a partition ({error}); restore it from a copy") from error


def sized(train: Sequence[int], test: Sequence[int]) -> Counted:
    """A partition with these numbers of samples per client."""
    return Counted.of(offsets_of(np.array(train)), offsets_of(np.array(test)))


def alone(client: int, clients: int, dataset: Dataset) -> Partition:
    """A partition in which one client holds all samples and the others none."""
    counts = np.zeros((2, clients), dtype=np.int64)
    counts[:, client] = len(dataset.train_y), len(dataset.test_y)
    train, test = offsets_of(counts[0]), offsets_of(counts[1])
    return Partition(np.arange(train[-1]), train, np.arange(test[-1]), test)
