"""FedLC (Zhang et al., ICML 2022): logits are calibrated by the client's class counts.

    L = CE(z', y),   z'_c = z_c - tau n_c^(-1/4),   z'_c = -infinity where n_c = 0

Rare classes get a larger margin. n_c are the client's counts, not frequencies, so tau depends on the size of the data; the
shifts of classes with 1, 10 and 500 samples are tau, 0.56 tau and 0.21 tau. Only differences of shifts matter: clients with
equal counts of all classes train as in FedAvg, and so does tau = 0 where no class is missing.

How classes without samples are treated matters more than the rest. n^(-1/4) is infinite there, and such a class leaves the
client's softmax (absent=mask), so the head's rows of absent classes are not pushed away. Some ports shift it by 100 tau
instead, which is the same at tau = 1. absent=keep leaves the logit as it is: tau = 0 is then FedAvg on any split. A sample of
an absent class (public data) keeps its own logit.

Departure: the paper prints a denominator without the true class, which has no lower bound; every published code, and this
one, uses the cross-entropy. Default tau = 1 (FL-bench, PFLlib, FedACG's code; others 0.1). Evaluation uses plain logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import NonNegative
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span


class FedLC(Part):
    """Logits calibrated by the client's class counts."""

    paper = "Zhang et al. 2022, FedLC"
    work = "the loss alone"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "tau": Span(0.1, 1.0, log=True, source="published codes take 0.1 and 1"),
    }
    variants: ClassVar[frozenset[str]] = frozenset({"absent"})
    tau: NonNegative = 1.0
    """strength of the calibration; 0 is FedAvg where no class is missing"""
    absent: Literal["mask", "keep"] = "mask"
    """classes without samples: mask (left out of the softmax) | keep"""

    def loss(self, batch: Batch, client: ClientContext) -> Tensor:
        counts = client.counts
        present = counts > 0
        logits = batch.logits - self.tau * torch.where(present, counts.clamp(min=1).pow(-0.25), 0.0)
        if self.absent == "mask":
            own = torch.arange(len(counts), device=batch.y.device) == batch.y[:, None]
            logits = logits.masked_fill(~(present | own), -torch.inf)
        return F.cross_entropy(logits, batch.y)
