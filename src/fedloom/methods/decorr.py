"""FedDecorr (Shi et al., ICLR 2023): features are decorrelated, against dimensional collapse.

    R = ||K||_F^2 / d^2,   K = correlation matrix of the batch's features (d x d), deviations guarded by 1e-8

The diagonal of K is constant, so only correlations between features are pushed to zero; R is zero for batches of one sample. R
does not depend on the scale or the mean of a feature.

Departure: the authors' code uses the mean of the off-diagonal entries of (Z^T Z)^2 / N, Z the standardized features, which is
(N - 1)^2 / N times larger (62 at batch 64) up to the diagonal; `scale = code` gives that, for which their weights 0.1
(CIFAR-10, TinyImageNet) and 0.05 (CIFAR-100) were chosen. It is the default, so that published weights mean the same. Features
are those that enter the head: before normalization in `decorr + fn`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import NonNegative
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.api.search import Range, Span


class Decorr(Part):
    """Decorrelates features, against dimensional collapse."""

    paper = "Shi et al. 2023, FedDecorr"
    work = "the term of the loss, quadratic in features"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "weight": Span(0.01, 0.3, log=True, source="published codes take 0.01 to 0.1, and around"),
    }
    variants: ClassVar[frozenset[str]] = frozenset({"scale"})
    weight: NonNegative = 0.1
    """weight of the term"""
    scale: Literal["code", "paper"] = "code"
    """code (published weights mean the same) | paper (the printed equation)"""

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        samples, dim = batch.features.shape
        if samples < 2 or dim < 2:
            return batch.features.new_zeros(())
        centered = batch.features - batch.features.mean(0)
        standard = centered / torch.sqrt(centered.square().sum(0) / (samples - 1) + 1e-8)
        gram = standard.T @ standard
        if self.scale == "paper":
            return self.weight * (gram / (samples - 1)).square().sum() / dim**2
        between = gram - torch.diag_embed(gram.diagonal())
        return self.weight * between.square().sum() / (dim * (dim - 1)) / samples


alias("feddecorr", "decorr")
