"""What the adaptive server optimizers of Reddi et al. (ICLR 2021, Algorithm 2) share; they differ in how v moves.

    D = aggregate - w_g
    m <- beta1 m + (1 - beta1) D,   v <- by D^2 (fedadagrad, fedadam, fedyogi),   w <- w_g + lr m / (sqrt(v) + tau)

m starts at 0 and v at tau^2, the smallest value that the paper allows; there is no bias correction. (Google's code uses Keras'
optimizers, which correct the bias and start v at 0; several ports start v at 0.) `lr` is the server's; it does not follow the
recipe's schedule. The step is taken from the aggregate of any other part. m and v cover the shared weights; statistics of
normalizers are averaged. In the first round a weight moves by at most about lr (1 - beta1) / sqrt(1 - beta2), whatever the
length of D: with the defaults of fedadam and fedyogi, lr. So tau decides how far weights with small updates move. With a tau
far above all updates, v of fedyogi and fedadagrad stays at tau^2, and lr = 2 tau with beta1 = 0 is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedloom.methods.api.context import ServerContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import Positive
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span

Decay = Annotated[float, Field(ge=0, lt=1)]


class AdaptiveServer(Part, abstract=True):
    sums = "shares"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "lr": Span(0.001, 1.0, log=True, source="Reddi et al. 2021 try powers of ten from 0.001 to 10"),
        "tau": Span(1e-5, 0.1, log=True, source="Reddi et al. 2021 try powers of ten from 0.00001 to 0.1"),
    }
    lr: Positive
    """learning rate of the server"""
    beta1: Decay
    """decay of the mean of updates"""
    tau: Positive
    """added to the root of the mean square; a large one switches adaptivity off"""

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        """Move v, in place, by the squared update."""
        raise NotImplementedError

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"m": torch.zeros_like(weights), "v": torch.full_like(weights, self.tau**2)}

    def server_step(self, aggregate: Tensor, server: ServerContext) -> Tensor:
        update, m, v = aggregate - server.weights, server.state["m"], server.state["v"]
        m.mul_(self.beta1).add_(update, alpha=1 - self.beta1)
        self.second_moment(v, update.square())
        return server.weights + self.lr * m / (v.sqrt() + self.tau)
