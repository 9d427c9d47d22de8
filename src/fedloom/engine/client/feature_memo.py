"""Teachers' features of a client's samples, kept from one epoch to the next.

A teacher is frozen. Without augmentation, what it computes of a sample is the same in every epoch, so the first epoch computes
it batch by batch and later ones look it up. That takes nets whose outputs depend on each sample alone: not on the other
samples of its batch, as with `bn: batch`, and not on random draws. Later epochs agree with a computed teacher to rounding,
since a sample was in a batch of another size or at another place in it; a single epoch has the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.data.spec import InputSpec
from fedloom.nets import Net
from fedloom.rng import seeded

KEPT_BYTES = 64 << 20  # more than this is computed anew in every epoch
TeacherKey = tuple[str, str]  # the part that keeps the teacher ("" for the global model), and the teacher's name


class FeatureMemo:
    """`count`: the number of samples that batches take their indices from."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._features: dict[TeacherKey, Tensor] = {}
        self._known: dict[TeacherKey, Tensor] = {}  # by sample

    def find(self, key: TeacherKey, index: Tensor) -> Tensor | None:
        """The features of these samples, if all of them were kept."""
        if key not in self._known or not bool(self._known[key][index].all()):
            return None
        return self._features[key][index]

    def keep(self, key: TeacherKey, index: Tensor, features: Tensor) -> None:
        if key not in self._known:
            self._features[key] = features.new_empty(self._count, *features.shape[1:])
            self._known[key] = torch.zeros(self._count, dtype=torch.bool, device=index.device)
        self._features[key][index] = features
        self._known[key][index] = True


def is_samplewise(net: Net, inputs: InputSpec) -> bool:
    """Whether a net in evaluation mode treats every sample by itself: tried on inputs of noise."""
    x = inputs.random(4, generator=torch.Generator().manual_seed(0)).to(next(net.parameters()).device)
    with torch.no_grad(), seeded(0, "samplewise"):
        before = torch.random.get_rng_state()
        whole, halves = net.features(x), torch.cat([net.features(x[:2]), net.features(x[2:])])
        draws = not torch.equal(before, torch.random.get_rng_state())
    return not draws and torch.allclose(whole, halves, rtol=1e-3, atol=1e-4 * float(whole.abs().max()))
