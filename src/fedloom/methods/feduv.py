"""FedUV (Son et al., 2024): the uniformity of features and the variance of predictions are kept up on every client.

    V = mean_c max(0, 1/sqrt(C) - std over the batch of softmax(z)_c)
    U = mean over pairs i < j of exp(-||f_i - f_j||^2 / m),   m = median of the squared distances that are not zero (the lower
        of two middle ones)
    R = variance V + uniformity U

1/sqrt(C) is the deviation of a one-hot class column over balanced classes, so V is zero for confident, balanced predictions.
Deviations are unbiased; gradients pass through m, as in the authors' code. The paper speaks of the hypersphere; the code does
not normalize features, and neither does this. Batches of one sample, and batches whose features are all equal, have no
uniformity term; batches of one sample have no variance term. Defaults 2.5 and 0.5 (authors' code).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import NonNegative
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span


class FedUV(Part):
    """Keeps up the uniformity of features and the variance of predictions."""

    paper = "Son et al. 2024, FedUV"
    work = "the term of the loss, quadratic in the batch"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "variance": Span(0.25, 10.0, log=True, source="around the authors' 2.5"),
        "uniformity": Span(0.05, 2.0, log=True, source="around the authors' 0.5"),
    }
    variance: NonNegative = 2.5
    """weight of the term that keeps up the variance of predictions"""
    uniformity: NonNegative = 0.5
    """weight of the term that keeps up the uniformity of features"""

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        if len(batch.y) < 2:
            return batch.logits.new_zeros(())
        deviations = batch.logits.softmax(1).std(0)
        missing = torch.relu(batch.logits.shape[1] ** -0.5 - deviations).mean()
        return self.variance * missing + self.uniformity * _uniformity(batch.features)


def _uniformity(features: Tensor) -> Tensor:
    features = features.to(torch.promote_types(features.dtype, torch.float32))  # pdist has no bf16 form
    # of a pair of equal features it is exactly 0, and so is its gradient
    apart = torch.nn.functional.pdist(features).square()
    median = apart.where(apart > 0, torch.nan).nanmedian()
    alike = median.isnan()
    value = torch.exp(-apart / median.where(~alike, 1.0)).mean()
    return value.where(~alike, 0.0)
