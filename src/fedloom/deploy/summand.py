"""What a node adds to a secure sum: its update as whole numbers, weighted, in one vector.

Weights and statistics go in as their change since the broadcast, which is small, and what parts add as it is. A client's
share of its cohort is multiplied in before rounding, so a sum never exceeds the clipping range R and 32 bits suffice with
a unit of R / 2^30: without drop-outs a mean over k clients is off by k/2 units at most. Rounding is to the nearest, not at
random as in Flower's quantisation, and masks cancel exactly; so the same recipe gives the same bits again.

The first numbers of the vector are samples (exact: they tell whether a sum was unmasked rightly), how many numbers were
clipped, and the loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedloom.deploy.masks import Numbers
from fedloom.deploy.plan import HEAD
from fedloom.engine.setup import Experiment
from fedloom.errors import FedloomError
from fedloom.methods.sums import weighing
from fedloom.recipe import SecAgg

UNITS = 1 << 30  # in the clipping range
LOSS = 1024.0  # losses beyond are clipped
CHANGES = ("w", "statistics")  # sent as the change since the broadcast


@dataclass(frozen=True)
class Cohort:
    """Who is asked in a round: what a client's share is a share of."""

    clients: int
    samples: int


@dataclass(frozen=True)
class Sum:
    """What the server learns in a round."""

    tensors: dict[str, Tensor]  # means, each weighted in its way
    loss: float
    clipped: int


class Summand:
    """Vectors of one experiment."""

    def __init__(self, experiment: Experiment, settings: SecAgg) -> None:
        self.items = experiment.messages.up.items
        self.range = settings.clipping_range
        self.length = HEAD + sum(math.prod(item.shape) for item in self.items)
        by_samples = experiment.recipe.weighting == "samples"
        self._by_samples = {
            item.name: by_samples and weighing(experiment.method, item.name) == "shares" for item in self.items
        }

    def encode(
        self, up: Mapping[str, Tensor], down: Mapping[str, Tensor], samples: int, loss: float, of: Cohort
    ) -> tuple[Numbers, int]:
        """A client's vector, and how many of its numbers were clipped."""
        pieces, clipped = [], 0
        for item in self.items:
            x = up[item.name].reshape(-1).double()
            if item.name in CHANGES:
                x = x - down[item.name].reshape(-1).double()
            clipped += int((x.abs() > self.range).sum())
            pieces.append(
                self._whole(x.clamp(-self.range, self.range) / self.range, self._share(item.name, samples, of))
            )
        lost = torch.tensor([loss], dtype=torch.float64).nan_to_num(LOSS).clamp(-LOSS, LOSS) / LOSS
        head = np.array([samples, clipped], dtype=np.int64)
        whole = np.concatenate([head, self._whole(lost, samples / of.samples), *pieces])
        return whole.astype(np.uint32), clipped  # modulo 2^32

    def decode(self, total: Numbers, down: Mapping[str, Tensor], samples: Sequence[int], of: Cohort) -> Sum:
        """Means from the sum of vectors of clients with so many samples each."""
        if int(total[0]) != sum(samples) % 2**32:
            raise FedloomError("the masks do not cancel, so that a key or a share of one is wrong")
        numbers = total.view(np.int32).astype(np.float64)
        values = torch.from_numpy(numbers[HEAD:] / UNITS * self.range)
        tensors, begin = {}, 0
        for item in self.items:
            size = math.prod(item.shape)
            arrived = sum(self._share(item.name, count, of) for count in samples)
            mean = values[begin : begin + size] / arrived
            if item.name in CHANGES:
                mean = mean + down[item.name].reshape(-1).double()
            tensors[item.name] = mean.reshape(item.shape).to(item.dtype)
            begin += size
        loss = float(numbers[2]) / UNITS * LOSS * of.samples / sum(samples)
        return Sum(tensors, loss, int(total[1]))

    def _share(self, name: str, samples: int, of: Cohort) -> float:
        return samples / of.samples if self._by_samples[name] else 1 / of.clients

    @staticmethod
    def _whole(x: Tensor, share: float) -> np.ndarray:
        return (x * (share * UNITS)).round().to(torch.int64).numpy()
