"""Which statistics a batch-normalised net is tested with: the recipe's `bn`, because the papers differ.

running and local keep running averages (the server's or each client's own); batch keeps none, so that a test batch is
normalised by itself, as in FedBABU's, FedFN's and FedDr+'s code.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedloom.errors import FedloomError

BatchNormMode = Literal["running", "batch", "local"]


def set_batch_norm(net: nn.Module, bn: BatchNormMode) -> None:
    """Give every batch normaliser of the net running statistics, or take them away, whatever it was made with.

    The count of batches goes in any case: it is an integer that must not be averaged, and only momentum=None needs it.
    """
    if bn not in get_args(BatchNormMode):
        raise FedloomError(f"bn is {bn!r}; it can be {', '.join(get_args(BatchNormMode))}")
    for name, norm in net.named_modules():
        if isinstance(norm, _BatchNorm):
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
