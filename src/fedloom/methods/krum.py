"""Krum and multi-Krum (Blanchard et al., NeurIPS 2017): the uploads that lie nearest to most others.

    score_i = sum of the n - f - 2 smallest ||w_i - w_j||^2, j != i
    krum:       w <- the upload with the smallest score
    multi-Krum: w <- the mean of the m uploads with the smallest scores (keep = m)

n is the number of accepted uploads, f (`malicious`) the number of malicious clients that must be tolerated. The rule is sound
for n >= 2 f + 3; it is refused where a full round is smaller, and so is m > n - f, which would average a malicious upload. In
a round with fewer uploads, f and then m are lowered to what fits; of fewer than three uploads the mean is taken. Published
codes differ (distances that are not squared or squared twice, n - f or n - f - 1 neighbours, a sum in place of the mean); this
is the paper's rule. Chosen uploads are averaged without weights, since a number of samples is one more claim of a malicious
client. Scores are computed in double precision; equal scores are ranked by client order. Running statistics of normalizers are
averaged over all uploads; see robust.py. keep=null is the largest m with a proof, n - f - 2 (`multikrum`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedloom.errors import FedloomError
from fedloom.methods.api.context import RunPlan, ServerContext
from fedloom.methods.api.hyperparameters import Count
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias


class Krum(Part):
    """The upload that is nearest to most others, or the mean of the nearest few."""

    paper = "Blanchard et al. 2017, Krum"
    unweighted: ClassVar[bool] = True
    bounds: ClassVar[bool] = True
    variants: ClassVar[frozenset[str]] = frozenset({"keep"})
    malicious: Annotated[int, Field(ge=0)] = 1
    """number of malicious clients that are tolerated"""
    keep: Count | None = 1
    """number of uploads that are averaged; null: the most that has a proof"""

    def check(self, plan: RunPlan) -> None:
        needed, honest = 2 * self.malicious + 3, plan.task.cohort - self.malicious
        if plan.task.cohort < needed:
            raise FedloomError(
                f"with malicious={self.malicious} it needs {needed} clients or more in a round, and there are "
                f"{plan.task.cohort}; lower malicious, or sample more clients"
            )
        if self.keep is not None and self.keep > honest:
            raise FedloomError(f"keep={self.keep} is more than the {honest} honest clients of a round; lower keep")

    def aggregate(self, server: ServerContext) -> Tensor:
        uploads = server.uploads
        if len(uploads) < 3:
            return torch.stack(list(uploads)).mean(0)
        malicious = min(self.malicious, (len(uploads) - 3) // 2)
        neighbours = len(uploads) - malicious - 2
        scores = distances(uploads).sort(1).values[:, 1 : 1 + neighbours].sum(1)  # the nearest to each is itself
        keep = neighbours if self.keep is None else min(self.keep, len(uploads) - malicious)
        best = scores.sort(stable=True).indices[:keep].sort().values
        return torch.stack([uploads[int(i)] for i in best]).mean(0)


def distances(vectors: Sequence[Tensor]) -> Tensor:
    """(n, n) squared distances, in double precision."""
    table = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    for i, one in enumerate(vectors):
        for j in range(i):
            table[i, j] = table[j, i] = (one - vectors[j]).double().square().sum()
    return table


alias("multikrum", "krum(keep=null)", "the mean of the uploads that are nearest to most others")
alias("multi-krum", "krum(keep=null)", "the mean of the uploads that are nearest to most others")
