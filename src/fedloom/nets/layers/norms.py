"""Feature normalizers beyond torch's own. Each takes maps (B, C, ...) and has a scale and a shift per channel."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedloom.nets.layers.batchnorm import BatchStatistics
from fedloom.nets.layers.moments import full_precision, moments, rows_of, scaled


class FilterResponseNorm(nn.Module):
    """Filter response normalization (Singh & Krishnan, 2020): y = gamma x / sqrt(nu + |eps|) + beta, nu the mean of x^2
    over the pixels of each map. On maps of one pixel eps is learned, from 1e-4, since y would be the sign of x.
    """

    normalizer: ClassVar[bool] = True

    def __init__(self, channels: int, learn_eps: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps: Tensor | float = nn.Parameter(torch.tensor([1e-4])) if learn_eps else 1e-6

    def forward(self, x: Tensor) -> Tensor:
        exact = full_precision(x)
        mean, var = moments(exact)
        eps = self.eps.abs() if isinstance(self.eps, Tensor) else self.eps
        slope = self.weight * torch.rsqrt(var + mean.square() + eps)
        return scaled(exact, slope, self.bias).to(x.dtype)


class ThresholdedUnit(nn.Module):
    """max(x, tau_c) with a threshold per channel that is learned, from 0: a ReLU for filter response normalization."""

    normalizer: ClassVar[bool] = True  # the threshold is the other half of that normalizer

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        threshold = self.threshold.view(-1, *(1,) * (x.dim() - 2)).to(x.dtype)
        return torch.relu(x - threshold) + threshold  # five times faster than torch.maximum and its gradient


class RepresentativeBatchNorm(_BatchNorm):
    """Representative batch normalization (Gao et al., 2021): each map is first moved by w_m times its own mean; after
    batch normalization each is scaled by sigmoid(w_v * its own mean + w_b). At first w_m = w_v = 0, w_b = 1.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.center_weight = nn.Parameter(torch.zeros(channels))
        self.scale_weight = nn.Parameter(torch.zeros(channels))
        self.scale_bias = nn.Parameter(torch.ones(channels))

    def _check_input_dim(self, input: Tensor) -> None:
        pass  # maps of any number of dimensions

    def forward(self, input: Tensor) -> Tensor:
        x = full_precision(input)
        centerd = x + (self.center_weight * _pixel_mean(x)).view(*x.shape[:2], *(1,) * (x.dim() - 2))
        by_batch = self.training or self.running_mean is None
        kept = (self.running_mean, self.running_var)
        momentum = 0.0 if self.momentum is None else self.momentum
        normal = F.batch_norm(centerd, *kept, None, None, by_batch, momentum, self.eps)
        share = torch.sigmoid(self.scale_weight * _pixel_mean(normal) + self.scale_bias)
        return scaled(normal, share * self.weight, self.bias).to(input.dtype)


class SwitchableNorm(BatchStatistics):
    """Switchable normalization (Luo et al., 2019): means and variances are softmax-weighted sums of those of instance,
    layer and batch normalization, in this order, with a selector for means and one for variances.
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(channels, eps, momentum)
        self.mean_selector = nn.Parameter(torch.ones(3))
        self.var_selector = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        exact = full_precision(x)
        mean, var = moments(exact)  # of instances: (B, C)
        spread, layer_mean = torch.var_mean(mean, 1, correction=0, keepdim=True)  # (B, 1)
        layer_var = var.mean(1, keepdim=True) + spread
        batch_mean, batch_var = self.batch_moments(mean, var, exact[0, 0].numel())  # (C,)
        m, v = self.mean_selector.softmax(0), self.var_selector.softmax(0)
        mu = m[0] * mean + m[1] * layer_mean + m[2] * batch_mean
        slope = self.weight * torch.rsqrt(v[0] * var + v[1] * layer_var + v[2] * batch_var + self.eps)
        return scaled(exact, slope, self.bias - mu * slope).to(x.dtype)


def _pixel_mean(x: Tensor) -> Tensor:
    rows, axis = rows_of(x)
    return rows.mean(axis)  # (B, C)
