"""FedNova (Wang et al., NeurIPS 2020): clients that took more steps do not pull harder.

    d_i = (w_g - w_i) / a_i,   tau = sum_i p_i a_i,   w <- w_g - tau * sum_i p_i d_i

a_i is the client's number of steps, or with momentum the effective number (see scaffold): a sum over the stretches of
steps that began with empty momentum buffers, so a client that a second act (fnr) lets go on counts a_K1 + a_K2. With
equal steps this is FedAvg, so nothing changes under balanced splits. Departure: summed with prox, a_i stays that of
plain SGD with momentum.
"""

from __future__ import annotations

from torch import Tensor

from fedloom.methods.method import alias
from fedloom.methods.part import Part
from fedloom.methods.scaffold import distance
from fedloom.methods.seen import Server


class Nova(Part):
    """Normalised averaging: updates count per step taken."""

    paper = "Wang et al. 2020, FedNova"

    def combine(self, server: Server) -> Tensor:
        a = [distance(segments, server.momentum) for segments in server.segments]
        tau = sum(p * a_i for p, a_i in zip(server.shares, a, strict=True))
        new = server.weights.clone()
        for p, a_i, w_i in zip(server.shares, a, server.uploads, strict=True):
            if a_i:  # a client that trains only what is its own has taken no step here
                new.add_(w_i - server.weights, alpha=tau * p / a_i)
        return new


alias("fednova", "nova", "FedAvg with normalised averaging", "Wang et al. 2020, FedNova")
