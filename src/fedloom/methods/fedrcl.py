"""FedRCL (Seo et al., CVPR 2024): relaxed contrastive learning, at several depths of the net.

At every level, with z the stage's output before its activation, averaged over positions, n = z / ||z|| and s_ij = n_i . n_j:

    SCL_i = -log [ e^{s+/T} / (e^{s+/T} + sum over the two hardest negatives e^{s-/T}) ]
    Pen_i = log(1 + e^{(s - 1)/T})   if s >= threshold, else nothing
    R = mean over levels and samples of contrast * SCL_i + penalty * Pen_i

s+ is the smallest similarity to a sample of the same class in the batch, itself included (1 if it is alone); the negatives are
the two most similar samples of other classes; s is the smallest similarity to another sample of the same class. Contrast pulls
the features of a class together, and on skewed clients until they collapse; the penalty pushes back once even the least
similar pair of a class is nearly the same. A batch of one class has SCL = 0.

Departure: this is the authors' code, which mines the hardest pairs; in the paper (as we recall it) the terms sum over all
pairs, and every pair above the threshold is penalized. The code also computes the global model's features and weighs them with
zero.

Levels: the stages of the net. Residual nets have five, as published: stem and four stages; `mlp`, `cnn`, `conv4`, `lenet` and
`vgg11` have one for each hidden layer or block. A net without marked stages (others, and users' own) has one level, its
features; a module with an attribute `stage = True` marks what enters it as a level. Defaults T = 0.05, threshold 0.7, both
weights 1 (authors' code). Both weights 0 are FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import NonNegative, Positive
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span

HARDEST = 2  # negatives


class FedRCL(Part):
    """Relaxed contrastive learning on the outputs of all stages."""

    paper = "Seo et al. 2024, FedRCL"
    work = "the term of the loss, quadratic in the batch"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "contrast": Span(
            0.01, 3.0, log=True, source="ours: the authors' 1 suits a net with group norms, plain nets less"
        ),
        "penalty": Span(0.1, 3.0, log=True, source="around the authors' 1"),
    }
    uses_stages: ClassVar[bool] = True
    contrast: NonNegative = 1.0
    """weight of the contrastive term"""
    penalty: NonNegative = 1.0
    """weight of the penalty on samples that are too similar"""
    temperature: Positive = 0.05
    """temperature of similarities"""
    threshold: Annotated[float, Field(ge=-1, le=1)] = 0.7
    """similarity above which the penalty acts"""

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        same = batch.y[:, None] == batch.y
        return torch.stack([self._level(level, same) for level in batch.stages]).mean()

    def _level(self, level: Tensor, same: Tensor) -> Tensor:
        unit = F.normalize(level.float(), eps=1e-12)
        similar = unit @ unit.T
        others = same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
        positive = similar.masked_fill(~same, torch.inf).amin(1)
        negatives = similar.masked_fill(same, -torch.inf).topk(min(HARDEST, len(same))).values
        options = torch.cat([positive[:, None], negatives], 1) / self.temperature
        contrast = options.logsumexp(1) - options[:, 0]
        nearest = similar.masked_fill(~others, torch.inf).amin(1)
        collapsed = others.any(1) & (nearest >= self.threshold)
        penalty = F.softplus((nearest.where(collapsed, 0.0) - 1) / self.temperature).where(collapsed, 0.0)
        return (self.contrast * contrast + self.penalty * penalty).mean()
