"""Weight normalization of FedNN (Kang et al., 2024): every convolution uses its standardized weight (Equation 4).

    theta_hat = (theta - mean) / deviation,   over (in, height, width) of each output channel
    deviation = sqrt(mean (theta - mean)^2 + eps)

The claim: the weights of clients drift in shift and scale; the standardized weight is free of both, after averaging
too. The raw theta is trained, sent, averaged and stored. There is no learned gain, and activations grow with the
square root of the fan-in unless a feature normalizer follows: alone it hurts (the paper's Table 5). It applies to all
convolutions of the body (1-d to 3-d), not to linear layers.

Defaults: the paper's equation, with eps = 1e-10, which it leaves open. The authors' code uses the unbiased deviation
and adds 1e-5 to it: wn(ddof=1, eps=1e-5, outside=true). Departure: a convolution with one weight per output channel
(fan-in 1) is left unchanged, since its standardized weight would be 0 / 0.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from fedloom.errors import FedloomError
from fedloom.methods.api.context import TaskInfo
from fedloom.methods.api.hyperparameters import Positive
from fedloom.methods.api.part import Part
from fedloom.nets import Net
from fedloom.nets.layers.convs import Standard, standardize


class WN(Part):
    """Weight normalization: convolutions use weights with mean 0 and deviation 1."""

    paper = "Kang et al. 2024, FedNN"
    work = "normalization of weights"
    ddof: Literal[0, 1] = 0
    """1: the unbiased deviation"""
    eps: Positive = 1e-10
    """keeps the deviation above zero"""
    outside: bool = False
    """add eps to the deviation, not to the variance"""

    def build(self, net: Net, task: TaskInfo) -> Net:
        convolutions = [m for m in net.body.modules() if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d))]
        normalizable = [conv for conv in convolutions if conv.weight[0].numel() > 1]
        if not normalizable:
            raise FedloomError("this net has no convolution with more than one weight per output channel; leave it out")
        for conv in normalizable:
            standardize(conv, Standard(self.ddof, self.eps, self.outside))
        return net
