"""FedNova (Wang et al., NeurIPS 2020): updates are normalized by the number of local steps.

    d_i = (w_g - w_i) / a_i,   tau = sum_i p_i a_i,   w <- w_g - tau * sum_i p_i d_i

a_i is the client's number of steps, or with momentum the effective number (see scaffold), summed over the stretches
of steps that began with zero momentum buffers: a client that trains again after a query (fnr) has a_K1 + a_K2. With
equal numbers of steps this is FedAvg, so balanced splits are unaffected. Departure: summed with prox, a_i stays that
of plain SGD with momentum.
"""

from __future__ import annotations

from torch import Tensor

from fedloom.methods.api.context import ServerContext
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.scaffold import distance


class Nova(Part):
    """Normalized averaging: updates are divided by the number of local steps."""

    paper = "Wang et al. 2020, FedNova"
    plain_sgd = "measures a client's movement in steps of equal length"

    def aggregate(self, server: ServerContext) -> Tensor:
        a = [distance(segments, server.momentum) for segments in server.segments]
        tau = sum(p * a_i for p, a_i in zip(server.shares, a, strict=True))
        new = server.weights.clone()
        for p, a_i, w_i in zip(server.shares, a, server.uploads, strict=True):
            if a_i:  # no step on shared weights: only personal regions were trained
                new.add_(w_i - server.weights, alpha=tau * p / a_i)
        return new


alias("fednova", "nova")
