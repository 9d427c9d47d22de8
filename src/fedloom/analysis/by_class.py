"""Quantities per image, averaged by class: accuracy, norms (FedFN) and alignment (FedDr+).

FedFN figure 2. Classes that the client has training samples of (seen, ID) are apart from the others (unseen, OOD):

    feature norm   ||f(x)||_2, mean over test samples          weight norm   ||v_c||_2, mean over classes

FedDr+ section 3. theta is the client's model after local training, theta_0 the model that it started the round with:

    alignment         cos(f(x; theta), v_y)
    alignment gap     cos(f(x; theta), v_y) - cos(f(x; theta_0), v_y), each with the head of its own model
    feature distance  ||f(x; theta) - f(x; theta_0)||_2
    feature angle     between f(x; theta) and f(x; theta_0), in degrees

The bias of a head is ignored. A zero feature has alignment 0 and an angle of 90 degrees to any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.analysis.vectors import angle, class_sums, unit

ClassVector = npt.NDArray[np.float64]  # (C,)
ClassMask = npt.NDArray[np.bool_]  # (C,)
CHUNK = 2048  # images per step in double precision, to bound memory
OF_MODEL = ("accuracy", "feature_norm", "alignment")
OF_CHANGE = ("alignment_gap", "feature_distance", "feature_angle")


@dataclass(frozen=True)
class ModelOutputs:
    """A model's outputs on N images."""

    features: Tensor  # (N, d)
    head_inputs: Tensor  # (N, d'), what the head multiplies with its rows; usually the features
    head_rows: Tensor | None  # (C, d')
    correct: Tensor  # (N,)


def per_image(outputs: ModelOutputs, y: Tensor, start: ModelOutputs | None = None) -> dict[str, Tensor]:
    """(N,) each. OF_CHANGE only if the outputs of the model at the start are given."""
    values = {
        "accuracy": outputs.correct.double(),
        "feature_norm": outputs.features.double().norm(dim=1),
        "alignment": _alignment(outputs, y),
    }
    if start is not None:
        after, before = outputs.features.double(), start.features.double()
        values["alignment_gap"] = values["alignment"] - _alignment(start, y)
        values["feature_distance"] = (after - before).norm(dim=1)
        values["feature_angle"] = angle(unit(after), unit(before))
    return values


def sums_by_class(
    outputs: ModelOutputs, y: Tensor, classes: int, start: ModelOutputs | None = None
) -> dict[str, Tensor]:
    """(C,) each: sums over the images of each class."""
    totals: dict[str, Tensor] = {}
    for begin in range(0, max(len(y), 1), CHUNK):
        chunk = slice(begin, begin + CHUNK)
        start_chunk = None if start is None else _select(start, chunk)
        for name, values in per_image(_select(outputs, chunk), y[chunk], start_chunk).items():
            added = class_sums(values, y[chunk], classes)
            totals[name] = totals[name] + added if name in totals else added
    return totals


@dataclass(frozen=True)
class ByClass:
    """Means by class; NaN for a class without images."""

    images: ClassVector  # number of test samples
    sums: Mapping[str, ClassVector]
    weight_norm: ClassVector

    def mean(self, name: str) -> ClassVector:
        if name == "weight_norm":
            return self.weight_norm
        images = np.where(self.images > 0, self.images, np.nan)
        if name not in self.sums:
            return np.full_like(images, np.nan)
        return np.asarray(self.sums[name] / images, dtype=np.float64)

    def mean_over(self, name: str, classes: ClassMask | None = None) -> float:
        """The mean over all images of these classes; of weight norms, over the classes."""
        mask = np.ones(len(self.images), dtype=bool) if classes is None else classes
        if name == "weight_norm":
            return float(self.weight_norm[mask].mean()) if mask.any() else float("nan")
        count = self.images[mask].sum()
        return float(self.sums[name][mask].sum() / count) if count and name in self.sums else float("nan")


def _alignment(outputs: ModelOutputs, y: Tensor) -> Tensor:
    if outputs.head_rows is None:
        return torch.full((len(y),), torch.nan, dtype=torch.float64)
    return (unit(outputs.head_inputs) * unit(outputs.head_rows)[y]).sum(1)


def _select(outputs: ModelOutputs, chunk: slice) -> ModelOutputs:
    return ModelOutputs(outputs.features[chunk], outputs.head_inputs[chunk], outputs.head_rows, outputs.correct[chunk])
