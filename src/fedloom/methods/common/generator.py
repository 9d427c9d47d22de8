"""What methods with a generator on the server share: a module as a function of flat vectors in the server state, class
shares of clients, sampling of labels, and the diversity term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.methods.api.context import Peer
from fedloom.nets import set_batch_norm
from fedloom.rng import seeded
from fedloom.weights import TensorSlot


class Flat:
    """A module as a function of two vectors: its weights, and the running statistics of its normalizers."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        self._make = make
        with torch.device("meta"):  # it has no weights of its own
            self.module = self._create()
        self._weights = _places(dict(self.module.named_parameters()))
        self._statistics = _places(dict(self.module.named_buffers()))

    def first(self, seed: int, purpose: str) -> tuple[Tensor, Tensor]:
        """Weights and statistics at torch's initialization."""
        with seeded(seed, purpose):
            module = self._create()
        return (
            _filled(self._weights, dict(module.named_parameters())),
            _filled(self._statistics, dict(module.named_buffers())),
        )

    def __call__(self, weights: Tensor, statistics: Tensor, *inputs: Tensor, learning: bool = False) -> Tensor:
        """`learning`: normalize by the batch and update the statistics in place; otherwise normalize by the statistics."""
        self.module.train(learning)
        tensors = {**_views(self._weights, weights), **_views(self._statistics, statistics)}
        made: Tensor = functional_call(self.module, tensors, inputs)
        return made

    def _create(self) -> nn.Module:
        module = self._make()
        set_batch_norm(module, "running")
        return module


def _places(tensors: Mapping[str, Tensor]) -> list[TensorSlot]:
    places, offset = [], 0
    for name, tensor in tensors.items():
        channels_last = tensor.dim() == 4 and tensor.shape[1] > 1
        places.append(TensorSlot(name, tuple(tensor.shape), offset, tensor.numel(), channels_last))
        offset += tensor.numel()
    return places


def _views(places: Sequence[TensorSlot], vector: Tensor) -> dict[str, Tensor]:
    return {place.name: place.view(vector) for place in places}


@torch.no_grad()
def _filled(places: Sequence[TensorSlot], tensors: Mapping[str, Tensor]) -> Tensor:
    vector = torch.zeros(sum(place.size for place in places))
    for name, view in _views(places, vector).items():
        view.copy_(tensors[name])
    return vector


def class_shares(peers: Sequence[Peer]) -> tuple[Tensor, Tensor]:
    """a_i(y) = n_i^y / sum_j n_j^y, of shape (clients, C), and the pooled counts, (C,), from the uploaded `counts`."""
    counts = torch.stack([peer.upload["counts"] for peer in peers]).clamp(min=0)
    pooled = counts.sum(0)
    return counts / pooled.clamp(min=1e-6), pooled


def draw_labels(weights: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Labels sampled in proportion to class weights; uniformly if all weights are zero."""
    chances = weights + (weights.sum() == 0).to(weights.dtype)
    return torch.multinomial(chances, number, replacement=True, generator=generator)


def similarity(noise: Tensor, made: Tensor) -> Tensor:
    """exp(-mean_ij |e_i - e_j|^2 |G_i - G_j|), each distance a mean over dimensions: 1 if all samples are equal."""
    made = made.flatten(1)
    apart = torch.cdist(made, made, p=1) / made.shape[1]
    noises = (noise[:, None] - noise[None]).square().mean(2)
    return (-(noises * apart).mean()).exp()
