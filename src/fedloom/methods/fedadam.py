"""FedAdam (Reddi et al., ICLR 2021, Algorithm 2): the server takes steps of Adam along the average update.

    m <- beta1 m + (1 - beta1) D,   v <- beta2 v + (1 - beta2) D^2,   w <- w_g + lr m / (sqrt(v) + tau)

D = aggregate - w_g, m starts at 0 and v at tau^2, and no bias is corrected: common/adaptive.py has the details. Defaults: beta1
= 0.9, beta2 = 0.99, as in the paper; lr = 0.01 and tau = 0.001, the values for CIFAR-10 in Flower's reproduction (with a client
rate of 0.03); for CIFAR-100 Google's code uses lr = 1 and tau = 0.1. With a tau far above all updates their size no longer
matters: round t steps by m lr / (tau (1 + beta2^(t/2))), since v falls from tau^2.
"""

from __future__ import annotations

from torch import Tensor

from fedloom.methods.api.hyperparameters import Positive
from fedloom.methods.common.adaptive import AdaptiveServer, Decay


class FedAdam(AdaptiveServer):
    """The server takes steps of Adam along the average update."""

    paper = "Reddi et al. 2021, FedAdam"
    lr: Positive = 0.01
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    """decay of the mean of squared updates"""
    tau: Positive = 0.001

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        v.mul_(self.beta2).add_(square, alpha=1 - self.beta2)
