"""Gradients of gradients: a kernel's backward pass, written down in torch's own differentiable operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def differentiably(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], needed: Sequence[bool], g: Tensor
) -> list[Tensor | None]:
    """The gradients of function(*inputs), as torch computes them, in a graph that can be differentiated again.

    For `backward` under create_graph; `inputs` are the saved ones, `needed` says whose gradients are wanted.
    """
    wanted = [tensor for tensor, need in zip(inputs, needed, strict=True) if tensor is not None and need]
    with torch.enable_grad():
        made = function(*inputs)
        gradients = iter(torch.autograd.grad(made, wanted, g, create_graph=True))
    return [
        next(gradients) if tensor is not None and need else None for tensor, need in zip(inputs, needed, strict=True)
    ]
