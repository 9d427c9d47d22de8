"""The four factors of FedFN (Kim et al. 2023, section 3.1 and appendix B.3), on test samples by default.

The prototype p_c is the mean of f(x) over the images of class c; features are not normalized before:

    weight similarity           cos(v_c, v_k)                         lower is better
    inter-class similarity      cos(p_c, p_k)                         lower is better
    intra-class similarity      mean over x of class c of cos(f(x), p_c)    higher is better
    prototype-weight alignment  cos(p_c, v_c)                         higher is better

In the paper the last two are one number per class. Here they are the diagonals of matrices (features of class c against
prototype k, prototype c against row k), which also show confusion. Means are over c != k of the first two and over c = k of
the last two. Appendix B.3 writes (ii) and (iv) as inner products, but gives (ii) the range [-1, 1], and section 3.1 calls
both cosines: they are cosines here. The bias of a head is ignored. A class without images, or a head without rows for
classes, gives NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.analysis.vectors import class_sums, unit

NAMES = ("weight_similarity", "inter_class", "intra_class", "prototype_weight")


@dataclass(frozen=True)
class Factors:
    """(C, C) each, float64."""

    weight_similarity: Tensor
    inter_class: Tensor
    intra_class: Tensor
    prototype_weight: Tensor

    def matrices(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in NAMES}

    def means(self) -> dict[str, float]:
        return {
            "weight_similarity": _off_diagonal(self.weight_similarity),
            "inter_class": _off_diagonal(self.inter_class),
            "intra_class": float(self.intra_class.diagonal().nanmean()),
            "prototype_weight": float(self.prototype_weight.diagonal().nanmean()),
        }


def factors(
    features: Tensor, y: Tensor, rows: Tensor | None, classes: int, head_inputs: Tensor | None = None
) -> Factors:
    """Factors of features (N, d) with labels y and the head's rows V (C, d), if it has them.

    `head_inputs`: what the rows of V are compared with, if the head projects features first (FedETF).
    """
    counts = torch.bincount(y, minlength=classes)
    absent = counts == 0
    share = 1 / counts.clamp(min=1).double()[:, None]
    prototypes = unit(class_sums(features, y, classes) * share)
    mean_direction = class_sums(unit(features), y, classes) * share
    inter, intra = prototypes @ prototypes.T, mean_direction @ prototypes.T
    for matrix in (inter, intra):
        matrix[absent], matrix[:, absent] = torch.nan, torch.nan
    if rows is None:
        missing = torch.full_like(inter, torch.nan)
        return Factors(missing, inter, intra, missing.clone())
    v = unit(rows)
    own = prototypes if head_inputs is None else unit(class_sums(head_inputs, y, classes) * share)
    aligned = own @ v.T
    aligned[absent] = torch.nan
    return Factors(v @ v.T, inter, intra, aligned)


def _off_diagonal(matrix: Tensor) -> float:
    return float(matrix[~torch.eye(len(matrix), dtype=torch.bool)].nanmean())
