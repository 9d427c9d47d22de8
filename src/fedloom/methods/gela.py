"""FedGELA (Fan et al., NeurIPS 2023): a fixed simplex head whose rows each client scales by its own class counts.

    z_c = E_c <v_c, f> / T,   E_c = C n_c / n,   L = cross-entropy of z

Features are batch-normalized (without the L2 norm); V is a fixed simplex ETF. A class without samples on the client
has the zero vector, so logit 0, not -inf. The global model is evaluated with the plain simplex, a client's own model
with its scaled one. Default T = 0.2, from the authors' code (their README prints 1e-5). Departure: FedDr+'s port adds
a projection and L2 norm, although that paper lists FedGELA without them; this is the authors' form.

In a sum, the scaling and T apply to this loss only: `batch.logits` stays <v_c, f>. So `gela + kd`, `gela + ld` and
`gela + ntd` distill the plain simplex logits, those that the global model is evaluated with, not the client's scaled
ones. FedDr+ does not print which of the two its grid distills.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.methods.api.context import Batch, ClientContext, TaskInfo
from fedloom.methods.api.hyperparameters import Positive
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.api.search import Range, Span
from fedloom.nets import Net
from fedloom.nets.layers.heads import simplex_etf, weight_of


class Gela(Part):
    """A fixed simplex head, scaled by each client's class counts."""

    paper = "Fan et al. 2023, FedGELA"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "temperature": Span(0.02, 2.0, log=True, source="a decade around the authors' 0.2")
    }
    replaces: ClassVar[frozenset[str]] = frozenset({"head"})
    temperature: Positive = 0.2
    """divides the logits"""

    def build(self, net: Net, task: TaskInfo) -> Net:
        simplex = simplex_etf(weight_of(net.head))
        net.body = nn.Sequential(net.body, nn.BatchNorm1d(net.dim))
        net.head = nn.Linear(net.dim, net.classes, bias=False)
        net.head.weight = nn.Parameter(simplex, requires_grad=False)
        return net

    def loss(self, batch: Batch, client: ClientContext) -> Tensor:
        return F.cross_entropy(self.own_logits(batch.logits, client.counts) / self.temperature, batch.y)

    def own_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        share = counts * (len(counts) / counts.sum())  # E_c
        return logits * share


alias("fedgela", "gela")
