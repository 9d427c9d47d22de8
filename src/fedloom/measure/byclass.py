"""What is measured image by image and told class by class: accuracy, norms (FedFN), alignment (FedDr+).

FedFN figure 2, with classes that the client holds (seen, ID) apart from those it does not (unseen, OOD):

    feature norm   ||f(x)||_2, mean over test images          weight norm   ||v_c||_2, mean over classes

FedDr+ section 3, theta the client's model after local training, theta_0 what it began the round with:

    alignment         cos(f(x; theta), v_y)
    alignment gap     cos(f(x; theta), v_y) - cos(f(x; theta_0), v_y), each with the head of its own model
    feature distance  ||f(x; theta) - f(x; theta_0)||_2
    feature angle     between f(x; theta) and f(x; theta_0), in degrees

The bias of a head takes no part. A zero feature has alignment 0 and an angle of 90 degrees to any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.measure.vectors import angle, class_sums, unit

Column = npt.NDArray[np.float64]
CHUNK = 2048  # images at a time in double precision
OF_ONE = ("accuracy", "feature_norm", "alignment")
OF_TWO = ("alignment_gap", "feature_distance", "feature_angle")


@dataclass(frozen=True)
class Said:
    """What a model says of images: features, what meets its head's rows, those rows, and which it gets right."""

    features: Tensor  # (N, d)
    met: Tensor  # (N, d'), usually the features themselves
    rows: Tensor | None  # (C, d')
    hits: Tensor  # (N,)


def by_image(said: Said, y: Tensor, start: Said | None = None) -> dict[str, Tensor]:
    """(N,) each; the last three only against a start."""
    found = {
        "accuracy": said.hits.double(),
        "feature_norm": said.features.double().norm(dim=1),
        "alignment": _alignment(said, y),
    }
    if start is not None:
        a, b = said.features.double(), start.features.double()
        found["alignment_gap"] = found["alignment"] - _alignment(start, y)
        found["feature_distance"] = (a - b).norm(dim=1)
        found["feature_angle"] = angle(unit(a), unit(b))
    return found


def sums(said: Said, y: Tensor, classes: int, start: Said | None = None) -> dict[str, Tensor]:
    """(C,) each: sums over the images of a class."""
    total: dict[str, Tensor] = {}
    for begin in range(0, max(len(y), 1), CHUNK):
        piece = slice(begin, begin + CHUNK)
        first = None if start is None else _part(start, piece)
        for name, values in by_image(_part(said, piece), y[piece], first).items():
            added = class_sums(values, y[piece], classes)
            total[name] = total[name] + added if name in total else added
    return total


@dataclass(frozen=True)
class ByClass:
    """Means by class; NaN where there is nothing to take a mean of."""

    images: Column  # (C,) test images
    sums: Mapping[str, Column]
    weight_norm: Column

    def mean(self, name: str) -> Column:
        if name == "weight_norm":
            return self.weight_norm
        known = np.where(self.images > 0, self.images, np.nan)
        return (
            np.asarray(self.sums[name] / known, dtype=np.float64) if name in self.sums else np.full_like(known, np.nan)
        )

    def over(self, name: str, classes: npt.NDArray[np.bool_] | None = None) -> float:
        """The mean over all images of some classes; of weight norms, over these classes."""
        mask = np.ones(len(self.images), dtype=bool) if classes is None else classes
        if name == "weight_norm":
            return float(self.weight_norm[mask].mean()) if mask.any() else float("nan")
        count = self.images[mask].sum()
        return float(self.sums[name][mask].sum() / count) if count and name in self.sums else float("nan")


def _alignment(said: Said, y: Tensor) -> Tensor:
    if said.rows is None:
        return torch.full((len(y),), torch.nan, dtype=torch.float64)
    return (unit(said.met) * unit(said.rows)[y]).sum(1)


def _part(said: Said, piece: slice) -> Said:
    return Said(said.features[piece], said.met[piece], said.rows, said.hits[piece])
