"""A shift changes the inputs or the labels of a client. One per file in this folder; each registers itself.

A shift is a pure function of seed, client and image. The arrays of the dataset stay unchanged.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedloom.data.dataset import Dataset
from fedloom.data.partition.partition import Index
from fedloom.data.scheme import Scheme
from fedloom.data.spec import Kind
from fedloom.rng import numpy_generator

Pixels = npt.NDArray[np.float64]
Part = Literal["train", "test"]
Step = Literal["geometry", "color", "corruption", "noise", "labels"]
# The order in which the shifts of a sum are applied, however it is written; within a step by name.
STEPS: tuple[Step, ...] = ("geometry", "color", "corruption", "noise", "labels")


@dataclass(frozen=True)
class Viewer:
    """The client that sees the images of one part; its draws depend on seed, client and image only."""

    client: int
    clients: int
    seed: int
    part: Part

    def generator(self, purpose: str, index: int) -> np.random.Generator:
        return numpy_generator(self.seed, "split", purpose, self.part, self.client, int(index))

    @property
    def place(self) -> float:
        """0 for the first client, 1 for the last."""
        return self.client / max(self.clients - 1, 1)


class Shift(Scheme):
    """Applied to the training and test samples of a client alike. Override `apply`, `relabel` or both."""

    group: ClassVar[str] = "what is seen"
    step: ClassVar[Step]
    leaves_range: ClassVar[bool] = False  # whether values may leave 0 to 1
    kinds: ClassVar[tuple[Kind, ...]] = ("image",)  # inputs that `apply` can change; `relabel` works for all

    @property
    def changes_inputs(self) -> bool:
        return type(self).apply is not Shift.apply

    @property
    def changes_labels(self) -> bool:
        return type(self).relabel is not Shift.relabel

    def check(self, dataset: Dataset, clients: int) -> None:
        """Raise an error if the shift does not apply to these samples."""

    def apply(self, x: Pixels, index: Index, viewer: Viewer) -> Pixels:
        """The shifted samples; `index`: their positions in the dataset.

        `x`: images N,H,W,C with values 0 to 1 (floats as they are), or features with mean 0 and deviation 1.
        """
        return x

    def relabel(self, y: Index, classes: int, viewer: Viewer) -> Index:
        """The labels as this client sees them."""
        return y

    @abstractmethod
    def describe(self, viewer: Viewer, dataset: Dataset) -> str:
        """What this client sees, in a word or two."""
