"""FedExP as the released code of FedDr+ runs it: norms without squares, and a step that can only shrink.

    eta_g = min(1, mean_i ||D_i|| / (2 (||D|| + N eps))),   w <- w_g + eta_g D,   D_i = w_i - w_g,  D = sum_i p_i D_i

N is the number of clients in the round. FedExP itself (`exp`) has squared norms, max(1, .) and no N, and serves the mean of
the last two iterates. The published rows of FedExP in FedDr+'s Table 3 come from this code. Default eps = 0.001.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import ServerContext
from fedloom.methods.api.hyperparameters import Positive
from fedloom.methods.api.part import Part


class ExpMin(Part):
    """FedExP as in FedDr+'s code: the server's step can only shrink."""

    name: ClassVar[str] = "exp-min"
    paper = "FedDr+'s code"
    eps: Positive = 0.001
    """keeps the step finite where updates cancel"""

    def aggregate(self, server: ServerContext) -> Tensor:
        w = server.weights
        moves = [w_i - w for w_i in server.uploads]
        mean = server.mean(moves)
        norms = sum(_norm(move) for move in moves) / len(moves)
        rate = torch.clamp(torch.as_tensor(norms) / (2 * (_norm(mean) + len(moves) * self.eps)), max=1.0)
        return w + rate.to(w.dtype) * mean

    def server_step(self, aggregate: Tensor, server: ServerContext) -> Tensor:
        """`aggregate` has taken the server's step already; defining this hook keeps another part from taking a second one."""
        return aggregate


def _norm(vector: Tensor) -> Tensor:
    return vector.double().square().sum().sqrt()
