"""Which statistics batch normalization uses in evaluation: the recipe's `bn`, because the papers differ.

`running` and `local` keep running averages (shared, or each client's own); `batch` keeps none, so a test batch is
normalized by its own statistics, as in FedBABU's, FedFN's and FedDr+'s code.

It applies to torch's batch normalization and its subclasses, and to every subclass of `BatchStatistics`: normalizers that
use batch statistics among others.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedloom.errors import FedloomError

BatchNormMode = Literal["running", "batch", "local"]


class BatchStatistics(nn.Module):
    """A normalizer with scale, shift, and means and variances over the batch, as torch's batch normalization has them.

    In training they are the batch's, and the running averages move by `momentum` (the variance's unbiased); in
    evaluation they are the running ones, or the batch's where there are none.
    """

    normalizer: ClassVar[bool] = True
    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = channels, eps, momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.track_running_stats = True
        self.by_batch = False  # evaluation with the statistics of the test batch; until the mode is next set

    def train(self, mode: bool = True) -> Self:
        self.by_batch = False
        return super().train(mode)

    def batch_moments(self, mean: Tensor, var: Tensor, pixels: int) -> tuple[Tensor, Tensor]:
        """(C,) each, from the mean and biased variance over the pixels of each map, (B, C) each."""
        if self.running_mean is not None and self.running_var is not None and not (self.training or self.by_batch):
            return self.running_mean, self.running_var
        spread, center = torch.var_mean(mean, 0, correction=0)
        whole = var.mean(0) + spread  # the law of total variance: no difference of large numbers
        if self.training and self.running_mean is not None and self.running_var is not None:
            count = len(mean) * pixels
            with torch.no_grad():
                self.running_mean.lerp_(center.to(self.running_mean), self.momentum)
                unbiased = whole * (count / max(count - 1, 1))
                self.running_var.lerp_(unbiased.to(self.running_var), self.momentum)
        return center, whole


def batch_normalizers(net: nn.Module) -> list[nn.Module]:
    """The modules that normalize by statistics of the batch."""
    return [module for module in net.modules() if isinstance(module, (_BatchNorm, BatchStatistics))]


def use_test_batch(norms: list[nn.Module]) -> None:
    """In evaluation mode: use the statistics of each test batch instead of running averages."""
    for norm in norms:
        if isinstance(norm, BatchStatistics):
            norm.by_batch = True
        else:
            norm.train()


def set_batch_norm(net: nn.Module, bn: BatchNormMode) -> None:
    """Give every batch normalizer of the net running statistics, or remove them, whatever it was created with.

    The batch counter is always removed: it is an integer that must not be averaged, and only momentum=None needs it.
    """
    if bn not in get_args(BatchNormMode):
        raise FedloomError(f"bn is {bn!r}; it can be {', '.join(get_args(BatchNormMode))}")
    for name, norm in net.named_modules():
        if isinstance(norm, (_BatchNorm, BatchStatistics)):
            norm.track_running_stats = bn != "batch"
            if bn == "batch":
                norm.running_mean = norm.running_var = None
            elif norm.running_mean is None:
                norm.running_mean, norm.running_var = torch.zeros(norm.num_features), torch.ones(norm.num_features)
        if isinstance(norm, (_BatchNorm, _InstanceNorm)):
            if norm.track_running_stats and norm.momentum is None:
                raise FedloomError(
                    f"{name} ({type(norm).__name__}) has momentum=None, an average over a count of batches, which "
                    "cannot be shared between clients: give it a momentum, such as 0.1"
                )
            norm.num_batches_tracked = None
            norm.register_load_state_dict_pre_hook(_drop_count)  # type: ignore[no-untyped-call]


def _drop_count(norm: nn.Module, state: dict[str, object], prefix: str, *_: object) -> None:
    # torch adds the count to a plain dict of tensors while loading it, then calls it unexpected
    state.pop(f"{prefix}num_batches_tracked", None)
