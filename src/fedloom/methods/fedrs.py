"""FedRS (Li and Zhan, KDD 2021): restricted softmax. Logits of classes that a client lacks are scaled down in its loss.

    L = CE(s * z, y),   s_c = 1 if n_c > 0 else alpha                      (mode = absent, the paper)
                        s_c = alpha + (1 - alpha) n_c / max_k n_k          (mode = counts, the authors' code)

n_c: samples of class c on the client. The gradient that pushes the head's rows of absent classes away is multiplied by alpha.
Logits are scaled with their bias; the authors' head has none. The model is evaluated with plain logits. alpha = 1 is FedAvg;
alpha = 0 leaves an absent class a logit of zero, which still counts in the softmax. Default alpha = 0.5, in the middle of the
authors' grid (0.9 to 0.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import Share
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span


class FedRS(Part):
    """Restricted softmax: logits of classes that a client lacks are scaled down."""

    paper = "Li and Zhan 2021, FedRS"
    work = "the loss alone"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "alpha": Span(0.1, 0.9, source="Li and Zhan 2021 try 0.1 to 0.9"),
    }
    variants: ClassVar[frozenset[str]] = frozenset({"mode"})
    alpha: Share = 0.5
    """factor of logits of classes that the client lacks; 1 is FedAvg"""
    mode: Literal["absent", "counts"] = "absent"
    """absent (the paper) | counts (the code: by class counts)"""

    def loss(self, batch: Batch, client: ClientContext) -> Tensor:
        counts = client.counts
        share = (counts > 0).to(counts.dtype) if self.mode == "absent" else counts / counts.max()
        return F.cross_entropy(batch.logits * (self.alpha + (1 - self.alpha) * share), batch.y)
