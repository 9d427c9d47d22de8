"""The vector that a node contributes to a secure sum: its weighted update as integers.

Weights and statistics are encoded as their change since the broadcast, uploads of parts as they are. They are multiplied by
the client's share of its cohort before rounding, so a sum never exceeds the clipping range R, and 32 bits suffice with a unit
of R / 2^30: without drop-outs, a mean over k clients is off by at most k/2 units. Values are rounded to the nearest integer,
not at random as in Flower's quantization, and masks cancel exactly; so the same recipe gives the same bits again.

The vector starts with the number of samples (exact: it shows whether a sum was unmasked correctly), the number of clipped
values, and the loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.engine.experiment import Experiment
from fedloom.errors import FedloomError
from fedloom.methods.api.secure_sums import weighing
from fedloom.recipe import SecAgg

Numbers = NDArray[np.uint32]
HEADER = 3  # values before the tensors: samples, clipped, loss
UNITS = 1 << 30  # per clipping range
MAX_LOSS = 1024.0  # larger losses are clipped
CHANGES = ("w", "statistics")  # encoded as the change since the broadcast


@dataclass(frozen=True)
class CohortTotals:
    """The totals that a client's share is relative to."""

    clients: int
    samples: int


@dataclass(frozen=True)
class SecureSum:
    """What the server learns in a round."""

    tensors: dict[str, Tensor]  # means, each with its own weighting
    loss: float
    clipped: int


class SumEncoder:
    """Encodes and decodes the vectors of one experiment."""

    def __init__(self, experiment: Experiment, settings: SecAgg) -> None:
        self.items = experiment.program.messages.up.items
        self.range = settings.clipping_range
        self.length = HEADER + sum(math.prod(item.shape) for item in self.items)
        by_samples = experiment.recipe.weighting == "samples"
        self._by_samples = {
            item.name: by_samples and weighing(experiment.program.method, item.name) == "shares" for item in self.items
        }

    def encode(
        self, up: Mapping[str, Tensor], down: Mapping[str, Tensor], samples: int, loss: float, totals: CohortTotals
    ) -> tuple[Numbers, int]:
        """A client's vector, and how many of its values were clipped."""
        pieces, clipped = [], 0
        for item in self.items:
            x = up[item.name].reshape(-1).double()
            if item.name in CHANGES:
                x = x - down[item.name].reshape(-1).double()
            clipped += int((x.abs() > self.range).sum())
            pieces.append(
                self._integers(x.clamp(-self.range, self.range) / self.range, self._share(item.name, samples, totals))
            )
        bounded = torch.tensor([loss], dtype=torch.float64).nan_to_num(MAX_LOSS).clamp(-MAX_LOSS, MAX_LOSS) / MAX_LOSS
        head = np.array([samples, clipped], dtype=np.int64)
        vector = np.concatenate([head, self._integers(bounded, samples / totals.samples), *pieces])
        return vector.astype(np.uint32), clipped  # modulo 2^32

    def decode(
        self, total: Numbers, down: Mapping[str, Tensor], samples: Sequence[int], totals: CohortTotals
    ) -> SecureSum:
        """Means from the sum of the vectors of clients with these numbers of samples."""
        if int(total[0]) != sum(samples) % 2**32:
            raise FedloomError("the masks do not cancel: a key or a share of one is wrong")
        numbers = total.view(np.int32).astype(np.float64)
        values = torch.from_numpy(numbers[HEADER:] / UNITS * self.range)
        tensors, begin = {}, 0
        for item in self.items:
            size = math.prod(item.shape)
            total_share = sum(self._share(item.name, count, totals) for count in samples)
            mean = values[begin : begin + size] / total_share
            if item.name in CHANGES:
                mean = mean + down[item.name].reshape(-1).double()
            tensors[item.name] = mean.reshape(item.shape).to(item.dtype)
            begin += size
        loss = float(numbers[2]) / UNITS * MAX_LOSS * totals.samples / sum(samples)
        return SecureSum(tensors, loss, int(total[1]))

    def _share(self, name: str, samples: int, totals: CohortTotals) -> float:
        return samples / totals.samples if self._by_samples[name] else 1 / totals.clients

    @staticmethod
    def _integers(x: Tensor, share: float) -> np.ndarray:
        return (x * (share * UNITS)).round().to(torch.int64).numpy()
