"""FedAdagrad (Reddi et al., ICLR 2021, Algorithm 2): the server divides by the root of the sum of all squared updates.

    m <- beta1 m + (1 - beta1) D,   v <- v + D^2,   w <- w_g + lr m / (sqrt(v) + tau)

D = aggregate - w_g, m starts at 0 and v at tau^2: common/adaptive.py has the details. Steps shorten with the rounds. Defaults:
beta1 = 0, as in the paper; lr = 0.1 and tau = 0.01, those of Google's code for CIFAR-100.
"""

from __future__ import annotations

from torch import Tensor

from fedloom.methods.api.hyperparameters import Positive
from fedloom.methods.common.adaptive import AdaptiveServer, Decay


class FedAdagrad(AdaptiveServer):
    """The server takes steps of Adagrad along the average update."""

    paper = "Reddi et al. 2021, FedAdagrad"
    lr: Positive = 0.1
    """learning rate of the server"""
    beta1: Decay = 0.0
    """decay of the mean of updates"""
    tau: Positive = 0.01
    """added to the root of the sum of squares; a large one switches adaptivity off"""

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        v.add_(square)
