"""FedYogi (Reddi et al., ICLR 2021, Algorithm 2): as FedAdam, but v moves by at most a share of the squared update.

    m <- beta1 m + (1 - beta1) D,   v <- v - (1 - beta2) D^2 sign(v - D^2),   w <- w_g + lr m / (sqrt(v) + tau)

v falls slowly where updates become small, so steps do not grow at once. D = aggregate - w_g, m starts at 0 and v at tau^2, and
no bias is corrected: common/adaptive.py has the details. Defaults as fedadam's: beta1 = 0.9, beta2 = 0.99 (the paper), lr =
0.01, tau = 0.001 (Flower's reproduction on CIFAR-10).
"""

from __future__ import annotations

from torch import Tensor

from fedloom.methods.api.hyperparameters import Positive
from fedloom.methods.common.adaptive import AdaptiveServer, Decay


class FedYogi(AdaptiveServer):
    """The server takes steps of Yogi along the average update."""

    paper = "Reddi et al. 2021, FedYogi"
    lr: Positive = 0.01
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    """decay of the mean of squared updates"""
    tau: Positive = 0.001

    def second_moment(self, v: Tensor, square: Tensor) -> None:
        v.sub_(square * (v - square).sign(), alpha=1 - self.beta2)
