"""Adaptive group normalization: a layer that learns to normalize by the batch or by groups of channels (FedNN)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fedloom.nets.layers.batchnorm import BatchStatistics
from fedloom.nets.layers.moments import full_precision, moments, scaled

Mix = Literal["std", "var"]
ALL = 1 - 1e-4  # shares that were frozen by every client sum to one, up to rounding


class AdaptiveGroupNorm(BatchStatistics):
    """Mean and deviation are those of batch normalization (share s_0) and of group normalization (s_1), mixed.

    s = softmax((selector + G) / tau), G two Gumbel draws from torch's default generator in training, none in
    evaluation unless `eval_noise`. `tau` is set from outside, once a round. `mix`: deviations are mixed, or variances.
    `freeze`: a layer whose draw is one-hot in float32 keeps it, in a buffer that is averaged with the statistics; it
    holds while all of the clients that were averaged had frozen the layer.
    """

    frozen: Tensor | None

    def __init__(
        self,
        channels: int,
        groups: int = 2,
        tau: float = 5.0,
        mix: Mix = "std",
        eval_noise: bool = False,
        freeze: bool = False,
        eps: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        super().__init__(channels, eps, momentum)
        self.groups, self.tau, self.mix, self.eval_noise = groups, tau, mix, eval_noise
        self.selector = nn.Parameter(torch.ones(2))  # logits of (batch, group)
        self.register_buffer("frozen", torch.zeros(2) if freeze else None)

    def shares(self) -> Tensor:
        """(s_0, s_1) of this forward pass."""
        logits: Tensor = self.selector
        if self.training or self.eval_noise:
            logits = logits + gumbel(2).to(logits)
        s = torch.softmax(logits / self.tau, 0)
        if self.frozen is None:
            return s
        kept = self.frozen.clone()
        s = torch.where(kept.sum() > ALL, kept, s)
        if self.training:
            with torch.no_grad():
                self.frozen.copy_(torch.where((s.amax() - s.amin() >= 1) | (kept.sum() > ALL), s, kept))
        return s

    def forward(self, x: Tensor) -> Tensor:
        exact = full_precision(x)
        mean, var = moments(exact)
        batch_mean, batch_var = self.batch_moments(mean, var, exact[0, 0].numel())  # (C,)
        group_mean, group_var = self._group_moments(mean, var)  # (B, C)
        s = self.shares()
        mu = s[0] * batch_mean + s[1] * group_mean
        if self.mix == "std":
            sigma = s[0] * torch.sqrt(batch_var + self.eps) + s[1] * torch.sqrt(group_var + self.eps)
        else:
            sigma = torch.sqrt(s[0] * batch_var + s[1] * group_var + self.eps)
        slope = self.weight / sigma
        return scaled(exact, slope, self.bias - mu * slope).to(x.dtype)

    def _group_moments(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        shape = (len(mean), self.groups, -1)
        grouped = mean.reshape(shape)  # (B, groups, C / groups)
        spread, center = torch.var_mean(grouped, 2, correction=0, keepdim=True)
        whole = var.reshape(shape).mean(2, keepdim=True) + spread
        return center.expand_as(grouped).flatten(1), whole.expand_as(grouped).flatten(1)

    def extra_repr(self) -> str:
        return f"{self.num_features}, groups={self.groups}, mix={self.mix}, tau={self.tau:g}"


def gumbel(count: int) -> Tensor:
    """Draws of -log(-log(u)), on the CPU so that they are the same for every device."""
    return -torch.empty(count).exponential_().clamp_min_(torch.finfo(torch.float32).tiny).log()
