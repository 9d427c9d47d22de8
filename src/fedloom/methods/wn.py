"""Weight normalisation of FedNN (Kang et al., 2024): every convolution uses its weight standardised (Equation 4).

    theta_hat = (theta - mean) / deviation,   over (in, height, width) of each output channel
    deviation = sqrt(mean (theta - mean)^2 + eps)

The claim: clients drift in shift and scale of their weights, and what is used is free of both, after averaging too. The raw
theta is what is trained, sent, averaged and stored. There is no learnt gain, and activations grow with the square
root of the fan-in unless a feature normaliser follows: alone it hurts (the paper's Table 5). It acts on all convolutions
of the body (1-d to 3-d), not on linear layers.

Defaults: the paper's equation, with eps = 1e-10, which it leaves open. The authors' code has the unbiased deviation and
adds 1e-5 to it: wn(ddof=1, eps=1e-5, outside=true). Departure: a convolution with one weight per output channel (fan-in
1) is left as it is, since its standardised weight would be 0 / 0.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from fedloom.errors import FedloomError
from fedloom.methods.part import Part, Positive
from fedloom.methods.seen import Task
from fedloom.nets import Net
from fedloom.nets.convs import Standard, standardise


class WN(Part):
    """Convolutions use their weight with mean 0 and deviation 1."""

    paper = "Kang et al. 2024, FedNN"
    ddof: Literal[0, 1] = 0
    eps: Positive = 1e-10
    outside: bool = False  # eps is added to the deviation, not to the variance

    def build(self, net: Net, task: Task) -> Net:
        convolutions = [m for m in net.body.modules() if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d))]
        chosen = [conv for conv in convolutions if conv.weight[0].numel() > 1]
        if not chosen:
            raise FedloomError("this net has no convolution with more than one weight per output channel; leave it out")
        for conv in chosen:
            standardise(conv, Standard(self.ddof, self.eps, self.outside))
        return net
