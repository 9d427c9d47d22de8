"""Where kernels write the gradients of weights: into memory that is kept for them, so that nobody has to copy them there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

_places: dict[int, Tensor] = {}


@contextmanager
def gradients_in(places: Mapping[int, Tensor]) -> Iterator[None]:
    """For a backward pass. `places`: by the addresses of weights, vectors with the numbers in the same order.

    The first gradient of a weight is written there; where it has several, autograd adds the others.
    """
    _places.update(places)
    try:
        yield
    finally:
        for address in places:
            _places.pop(address, None)


def gradient_like(weight: Tensor) -> Tensor:
    """Memory for the gradient of a weight, in its shape."""
    place = _places.get(weight.data_ptr())
    if place is None or place.dtype != weight.dtype or place.numel() != weight.numel() or not weight.is_contiguous():
        return torch.empty_like(weight)
    del _places[weight.data_ptr()]
    return place.view(weight.shape)
