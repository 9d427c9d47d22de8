"""FedUV (Son et al., 2024): the uniformity of features and the variance of predictions are kept up on every client.

    V = mean_c max(0, 1/sqrt(C) - std over the batch of softmax(z)_c)
    U = mean over pairs i < j of exp(-||f_i - f_j||^2 / m),   m = median of the squared distances that are not zero
    R = variance V + uniformity U

1/sqrt(C) is the deviation of a one-hot class column over balanced classes, so V is zero for confident, balanced predictions.
Deviations are unbiased; gradients pass through m, as in the authors' code. The paper speaks of the hypersphere; the code does
not normalize features, and neither does this. Batches of one sample, and batches whose features are all equal, have no
uniformity term; batches of one sample have no variance term. Defaults 2.5 and 0.5 (authors' code).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import NonNegative
from fedloom.methods.api.part import Part


class FedUV(Part):
    """Keeps up the uniformity of features and the variance of predictions."""

    paper = "Son et al. 2024, FedUV"
    variance: NonNegative = 2.5
    uniformity: NonNegative = 0.5

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        if len(batch.y) < 2:
            return batch.logits.new_zeros(())
        deviations = batch.logits.softmax(1).std(0)
        missing = torch.relu(batch.logits.shape[1] ** -0.5 - deviations).mean()
        return self.variance * missing + self.uniformity * _uniformity(batch.features)


def _uniformity(features: Tensor) -> Tensor:
    squares = features.square().sum(1)
    rows, columns = torch.triu_indices(len(features), len(features), offset=1, device=features.device)
    apart = (squares[rows] + squares[columns] - 2 * (features @ features.T)[rows, columns]).clamp(min=0)
    median = apart.where(apart > 0, torch.full_like(apart, torch.nan)).nanmedian()
    return torch.where(median > 0, torch.exp(-apart / median), torch.zeros_like(apart)).mean()
